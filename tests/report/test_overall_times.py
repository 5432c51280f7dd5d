from towerpack.report.run_reader import overall_times


def epoch(number, data=1.0, seconds=2.0):
    stage = {"label": "MapData", "depth": 0, "workers": 0, "parallel": False}
    return {
        "epoch_num": number,
        "epoch": 4.0,
        "data": data,
        "step": 2.0,
        "callbacks": 0.5,
        "cores": 8,
        "stages": [stage | {"datapoints": 10, "seconds": seconds}],
        "callbacks_by_name": {
            "ModelSaver": {"seconds": 0.5, "at_steps": 0.0},
            "ProgressBar": {"seconds": number, "at_steps": number},
        },
    }


def test_the_first_epoch_does_not_count_where_there_are_others():
    overall = overall_times([epoch(1, data=100.0), epoch(2), epoch(3)])
    assert overall["parts"]["data"] == 2.0 and overall["parts"]["epoch"] == 8.0
    assert overall["verdict"].startswith("25% waiting for data, 50% in the step")
    (stage,) = overall["stages"]
    assert (stage["datapoints"], stage["seconds"], stage["load"]) == (20, 4.0, 0.5)
    bar, saver = overall["callbacks"]
    assert (bar["name"], bar["seconds"]) == ("ProgressBar", 5)
    assert (saver["name"], saver["seconds"], saver["share"]) == ("ModelSaver", 1, 0.125)


def test_few_epochs_all_count_and_none_give_nothing():
    assert overall_times([epoch(1), epoch(2)])["parts"]["epoch"] == 8.0
    assert overall_times([]) is None
