import subprocess
import sys

from towerpack.monitor.environment import is_alive, process_identity

SCRIPT = """
import json
from towerpack.monitor.environment import process_identity
print(json.dumps(process_identity()), flush=True)
input()
"""


def test_a_process_is_alive_until_it_ends():
    import json

    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    identity = json.loads(child.stdout.readline())
    assert is_alive(identity)
    child.communicate("\n")
    assert is_alive(identity) is False


def test_another_machine_is_unknown_and_a_reused_number_is_another_process():
    own = process_identity()
    assert is_alive(own)
    assert is_alive(own | {"host": "elsewhere.invalid"}) is None
    assert is_alive(own | {"start": "0"}) is False
