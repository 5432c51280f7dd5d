import signal
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.tiny_model import BATCH, SAMPLES, TinyModel, tiny_flow
from towerpack.callbacks import Callback, MaxSaver, MinSaver, ModelSaver
from towerpack.checkpoint import (
    CheckpointNotWritten,
    KeepBest,
    get_all_checkpoints,
    get_checkpoint_path,
    load_checkpoint_vars,
    load_run,
    verify_checkpoint,
)
from towerpack.checkpoint.background import BackgroundSaver
from towerpack.checkpoint.directory import Keep, Saved, read_state
from towerpack.cli import app
from towerpack.train import SimpleTrainer, TrainConfig, launch_train_with_config

STEPS = SAMPLES // BATCH


class Put(Callback):
    """Logs given values, one for each epoch."""

    def __init__(self, *values):
        self.values = values

    def _trigger(self):
        self.trainer.monitors.put_scalar("error", self.values[self.epoch_num - 1])


class Late(Callback):
    """Counts the ends of epochs that it saw."""

    done = 0

    def _trigger_epoch(self):
        self.done += 1

    def _state(self):
        return self.done


def train(*callbacks, epochs=3, **options):
    trainer = SimpleTrainer(jit=False)
    config = TrainConfig(
        model=TinyModel(),
        dataflow=tiny_flow(),
        callbacks=callbacks,
        extra_callbacks=[],
        monitors=[],
        max_epoch=epochs,
        **options,
    )
    launch_train_with_config(config, trainer)
    return trainer


def steps(directory):
    return [int(path.rpartition("-")[2]) for path in get_all_checkpoints(directory)]


def test_a_checkpoint_after_every_epoch_with_the_run_in_it(tmp_path):
    trainer = train(ModelSaver(checkpoint_dir=tmp_path))
    assert steps(tmp_path) == [STEPS, 2 * STEPS, 3 * STEPS]
    latest = get_checkpoint_path(tmp_path)
    values = load_checkpoint_vars(latest)
    np.testing.assert_array_equal(values["fc/W"], trainer.store["fc/W"])
    assert values["global_step"] == 3 * STEPS
    run = load_run(latest)
    assert run["state"]["epoch_num"] == 3
    assert "tensorflow-cpu" in run["versions"] or "tensorflow" in run["versions"]
    assert run["config"]["max_epoch"] == 3
    assert all(verify_checkpoint(path) == [] for path in get_all_checkpoints(tmp_path))


def test_the_last_stay_and_the_state_file_lists_them(tmp_path):
    train(ModelSaver(2, None, checkpoint_dir=tmp_path), epochs=5)
    assert steps(tmp_path) == [4 * STEPS, 5 * STEPS]
    assert read_state(tmp_path) == [f"model-{4 * STEPS}", f"model-{5 * STEPS}"]
    assert len(list(tmp_path.iterdir())) == 2 * 4 + 1


def test_the_best_stay(tmp_path):
    best = KeepBest("error", count=2)
    train(
        Put(3.0, 1.0, float("nan"), 2.0, 5.0, 4.0),
        ModelSaver(1, None, checkpoint_dir=tmp_path, keep_best=best),
        epochs=6,
    )
    assert steps(tmp_path) == [2 * STEPS, 4 * STEPS, 6 * STEPS]


def test_an_interval_of_steps_also_in_mid_epoch(tmp_path):
    train(ModelSaver(checkpoint_dir=tmp_path, every="4 steps"), epochs=2)
    expected = [step for step in range(1, 2 * STEPS) if step % 4 == 0]
    assert steps(tmp_path) == sorted({*expected, 2 * STEPS})  # the end of training too
    assert load_run(tmp_path / "model-4")["state"]["local_step"] == 3


def test_an_interval_that_ends_with_the_epoch_waits_for_its_end(tmp_path):
    train(ModelSaver(checkpoint_dir=tmp_path, every=f"{STEPS} steps"), Late(), epochs=2)
    run = load_run(tmp_path / f"model-{STEPS}")
    assert run["state"]["callbacks"]["Late"] == 1


def test_hours_and_best_and_last_together():
    saved = [Saved(f"{n}", saved_at=n * 1800.0, value=float(-n)) for n in range(8)]
    keep = Keep(last=2, hours=1, best=KeepBest("x", mode="max"))
    assert [old.name for old in keep.outdated(saved, began=0)] == ["1", "3", "5"]
    # What is kept for good does not depend on what was removed meanwhile.
    left = [each for each in saved if each.name not in "135"]
    assert keep.outdated(left, began=0) == []
    with pytest.raises(ValueError, match="at least one"):
        ModelSaver(0)
    with pytest.raises(ValueError, match="positive number of hours"):
        ModelSaver(1, 0)
    with pytest.raises(ValueError, match="'min' or 'max'"):
        KeepBest("x", mode="low")


def test_only_trainable_variables_on_request(tmp_path):
    train(ModelSaver(checkpoint_dir=tmp_path, var_collections="trainable_variables"), epochs=1)
    assert set(load_checkpoint_vars(tmp_path)) == {"fc/W", "fc/b"}
    with pytest.raises(ValueError, match="var_collections"):
        ModelSaver(var_collections="summaries")


def test_min_and_max_savers_keep_the_weights_of_the_best_epoch(tmp_path):
    values = (3.0, 1.0, float("nan"), 2.0)
    savers = [
        MinSaver("error", checkpoint_dir=tmp_path),
        MaxSaver("error", checkpoint_dir=tmp_path),
    ]
    # They may stand before the callback that logs.
    train(*savers, Put(*values), epochs=4)
    assert load_checkpoint_vars(tmp_path / "min-error")["global_step"] == 2 * STEPS
    assert load_checkpoint_vars(tmp_path / "max-error")["global_step"] == STEPS
    assert verify_checkpoint(tmp_path / "min-error") == []
    assert len(list(tmp_path.iterdir())) == 8


def test_a_scalar_of_another_step_is_not_taken_for_this_one(tmp_path):
    class Early(Callback):
        def _before_epoch(self):
            self.trainer.monitors.put_scalar("error", -float(self.epoch_num))

    train(Early(), MinSaver("error", checkpoint_dir=tmp_path), epochs=2)
    assert list(tmp_path.iterdir()) == []


def test_the_best_value_survives_a_restart(tmp_path):
    callbacks = [ModelSaver(checkpoint_dir=tmp_path), MinSaver("error", checkpoint_dir=tmp_path)]
    train(Put(1.0, 2.0), *callbacks, epochs=2)
    callbacks = [ModelSaver(checkpoint_dir=tmp_path), MinSaver("error", checkpoint_dir=tmp_path)]
    train(Put(0, 0, 1.5, 0.5), *callbacks, epochs=3, resume=tmp_path)
    assert load_checkpoint_vars(tmp_path / "min-error")["global_step"] == STEPS
    callbacks = [ModelSaver(checkpoint_dir=tmp_path), MinSaver("error", checkpoint_dir=tmp_path)]
    train(Put(0, 0, 0, 0.5), *callbacks, epochs=4, resume=tmp_path)
    assert load_checkpoint_vars(tmp_path / "min-error")["global_step"] == 4 * STEPS


def test_F8_a_best_that_was_not_saved_before_a_kill_is_made_up_for(tmp_path):
    savers = [ModelSaver(checkpoint_dir=tmp_path), MinSaver("error", checkpoint_dir=tmp_path)]
    trainer = train(Put(1.0), *savers, epochs=1)
    for file in tmp_path.glob("min-error.*"):
        file.unlink()
    savers = [ModelSaver(checkpoint_dir=tmp_path), MinSaver("error", checkpoint_dir=tmp_path)]
    train(Put(1.0, 2.0), *savers, epochs=2, resume=tmp_path)
    saved = load_checkpoint_vars(tmp_path / "min-error")
    assert saved["global_step"] == STEPS
    np.testing.assert_array_equal(saved["fc/W"], trainer.store["fc/W"])


def test_a_resumed_run_goes_on_removing_old_checkpoints(tmp_path):
    train(ModelSaver(2, None, checkpoint_dir=tmp_path), epochs=2)
    train(ModelSaver(2, None, checkpoint_dir=tmp_path), epochs=3, resume=tmp_path)
    assert steps(tmp_path) == [2 * STEPS, 3 * STEPS]
    # A new run leaves the old one's alone, and becomes the latest.
    train(ModelSaver(1, None, checkpoint_dir=tmp_path), epochs=1)
    assert steps(tmp_path) == [STEPS, 2 * STEPS, 3 * STEPS]
    assert get_checkpoint_path(tmp_path) == str(tmp_path / f"model-{STEPS}")


def test_a_state_taken_during_a_write_includes_what_is_written(tmp_path, monkeypatch):
    """Else a run resumed from that state would never remove this checkpoint."""
    saver, states = ModelSaver(checkpoint_dir=tmp_path), []
    written = saver._written

    class Impatient(Callback):
        def _trigger_step(self):
            if self.global_step == STEPS + 1:
                states.append(saver.state())

    def late(*args):
        time.sleep(0.5)
        written(*args)

    monkeypatch.setattr(saver, "_written", late)
    train(saver, Impatient(), epochs=2)
    assert states[0]["kept"] == [f"model-{STEPS}"]


def test_a_second_run_with_the_same_saver_saves_from_its_first_epoch(tmp_path):
    saver = ModelSaver(checkpoint_dir=tmp_path / "first")
    train(saver, epochs=1)
    saver.checkpoint_dir = tmp_path / "second"
    train(saver, epochs=1)
    assert steps(tmp_path / "second") == [STEPS]


def test_without_a_directory_it_says_what_to_do():
    with pytest.raises(ValueError, match="set_logger_dir"):
        train(ModelSaver())


class Interrupt(Callback):
    def __init__(self, at):
        self.at = at

    def _next_due(self):
        return self.at if self.at > self.global_step else None

    def _trigger_step(self):
        if self.global_step == self.at:
            signal.raise_signal(signal.SIGTERM)


def test_F7_sigterm_saves_in_mid_epoch(tmp_path):
    with pytest.raises(SystemExit) as caught:
        train(Interrupt(3), ModelSaver(checkpoint_dir=tmp_path))
    assert caught.value.code == 143
    assert steps(tmp_path) == [3]
    assert verify_checkpoint(tmp_path / "model-3") == []


def test_F7_sigterm_at_the_end_of_an_epoch_lets_it_end(tmp_path):
    """Else a resumed run would go on with the next epoch, and nobody would see this one's end."""
    with pytest.raises(SystemExit):
        train(Interrupt(STEPS), ModelSaver(checkpoint_dir=tmp_path), Late())
    assert steps(tmp_path) == [STEPS]
    assert load_run(tmp_path / f"model-{STEPS}")["state"]["callbacks"]["Late"] == 1


def test_F10_failures_are_counted_and_three_in_a_row_raise(tmp_path):
    saver, values = BackgroundSaver(), {"W": np.ones(3)}
    blocked = tmp_path / "file" / "model-1"
    (tmp_path / "file").touch()  # where a directory should be
    for _ in range(2):
        saver.save(blocked, values)
    saver.wait()
    assert saver.failures == 2
    saver.save(tmp_path / "model-1", values)  # one that works begins the count anew
    for _ in range(3):
        saver.save(blocked, values)
    with pytest.raises(CheckpointNotWritten, match="the last 3 checkpoints") as caught:
        saver.save(tmp_path / "model-2", values)
    assert isinstance(caught.value.__cause__, OSError)
    assert verify_checkpoint(tmp_path / "model-1") == []


def test_F10_a_last_save_that_failed_is_an_error_at_the_end(tmp_path):
    (tmp_path / "file").touch()
    saver = BackgroundSaver()
    saver.save(tmp_path / "file" / "model-1", {"W": np.ones(3)})
    with pytest.raises(CheckpointNotWritten, match="the last checkpoint"):
        saver.close()
    saver.close()


def test_one_write_at_a_time_of_the_moment_it_was_asked_for(tmp_path):
    saver, array = BackgroundSaver(), np.zeros(1 << 20)
    for step in range(5):
        array[:] = step
        saver.save(tmp_path / f"model-{step}", {"W": array})
        array[:] = -1
    saver.close()
    for step in range(5):
        assert (load_checkpoint_vars(tmp_path / f"model-{step}")["W"] == step).all()


def named(directory, *values, epochs=None, template="{epoch}-{error:.2f}", **options):
    options = {"checkpoint_dir": directory, "filename": template, **options}
    resume = options.pop("resume", None)
    saver = ModelSaver(options.pop("max_to_keep", 10), None, **options)
    return train(Put(*values), saver, epochs=epochs or len(values), resume=resume)


def test_names_from_a_template_are_listed_kept_and_the_latest_is_found(tmp_path):
    named(tmp_path, 0.5, 0.25, 0.125, max_to_keep=2)
    assert read_state(tmp_path) == ["2-0.25", "3-0.12"]
    assert get_checkpoint_path(tmp_path) == str(tmp_path / "3-0.12")
    assert [Path(name).name for name in get_all_checkpoints(tmp_path)] == ["2-0.25", "3-0.12"]
    assert verify_checkpoint(tmp_path / "3-0.12") == []
    (tmp_path / "checkpoint").write_text("damaged")
    assert get_checkpoint_path(tmp_path) == str(tmp_path / "3-0.12")
    listed = CliRunner().invoke(app, ["ckpt", "ls", str(tmp_path)]).stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["2-0.25", "*"]
    assert f"step {3 * STEPS}  error=0.125" in listed[1]
    CliRunner().invoke(app, ["ckpt", "prune", str(tmp_path), "--keep", "1"])
    assert [Path(name).name for name in get_all_checkpoints(tmp_path)] == ["3-0.12"]


def test_a_run_with_names_from_a_template_resumes_and_still_removes_the_old(tmp_path):
    named(tmp_path, 0.5, 0.25)
    (tmp_path / "checkpoint").unlink()
    trainer = named(tmp_path, 0, 0, 0.75, 0.5, resume=tmp_path, max_to_keep=2)
    assert trainer.global_step == 4 * STEPS
    assert read_state(tmp_path) == ["3-0.75", "4-0.50"]
    assert len(list(tmp_path.iterdir())) == 2 * 4 + 1


def test_a_name_is_never_used_for_two_steps(tmp_path, caplog):
    named(tmp_path, 0.5, 0.5, 0.5, template="{error:.1f}")
    expected = ["0.5", f"0.5-{2 * STEPS}", f"0.5-{3 * STEPS}"]
    assert read_state(tmp_path) == expected
    for number, name in enumerate(expected, 1):
        assert load_checkpoint_vars(tmp_path / name)["global_step"] == number * STEPS
    assert "0.5 is another checkpoint, which stays; saving as 0.5-12" in caplog.text
    # The same step again, of a run that continues before it, is the same checkpoint.
    for file in tmp_path.glob(f"0.5-{3 * STEPS}*"):
        file.unlink()
    named(tmp_path, 0, 0, 0.5, template="{error:.1f}", resume=tmp_path)
    assert read_state(tmp_path) == expected


def test_a_save_without_the_scalar_of_its_step_has_the_usual_name(tmp_path):
    named(tmp_path / "a", 0.5, 0.25, every="9 steps")
    assert read_state(tmp_path / "a") == ["model-9", "2-0.25"]
    saver = ModelSaver(checkpoint_dir=tmp_path / "b", filename="{error:.2f}")
    with pytest.raises(SystemExit):
        train(Interrupt(3), Put(0.5, 0.5, 0.5), saver)
    assert read_state(tmp_path / "b") == ["model-3"]


def test_a_scalar_that_nobody_logs_is_an_error_at_the_first_save(tmp_path):
    with pytest.raises(
        ValueError, match=r"by '\{errors\}': nothing was logged as 'errors'; known are 'error'"
    ):
        named(tmp_path, 0.5, template="{errors}")
    with pytest.raises(ValueError, match="it has '/'"):
        ModelSaver(filename="best/{epoch}")
