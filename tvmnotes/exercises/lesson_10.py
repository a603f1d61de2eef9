"""Exercises of lesson 10: early stopping, what a record is for, and trials where they matter."""

from .exercise import exercise, require


@exercise(
    "10.1",
    "tn.tune takes early_stopping=8 and returns a table; .frame() has a column trials.",
    'The answer is list(tuning.frame()["trials"]), for all tasks of the digits network.',
    minutes=10,
    difficulty=1,
)
def stopped_early(answer):
    """The trials of each task of the digits network, with early stopping."""
    trials = [int(count) for count in answer]
    do = "Tune the whole network, and take the column trials."
    require(len(trials) >= 5, "the number of tasks", "5 or more", len(trials), do)
    require(min(trials) >= 1, "the fewest trials of a task", "1 or more", min(trials), do)
    average = sum(trials) / len(trials)
    do = "Without early_stopping a task may have 32 trials; tune with early_stopping=8."
    require(average < 32, "the average number of trials", "fewer than 32", f"{average:.0f}", do)


@exercise(
    "10.2",
    "Build the network for batches of 1 and 8, and print lib.tuned of both. Then change other things.",
    "A record is for a workload, which is an operator with its shapes, on a target.",
    minutes=10,
    difficulty=1,
)
def belongs_to_a_record(answer):
    """What must be the same for a record to be used."""
    parts = {"batch size", "channels", "seed", "target", "weights"}
    chosen = set(answer)
    do = f"Choose among {', '.join(sorted(parts))}."
    require(chosen <= parts, "the parts", "only names of the list", sorted(chosen - parts), do)
    do = "Which of them change the loops of a kernel, or how fast they run?"
    needed = {"batch size", "channels", "target"}
    require(chosen <= needed, "the parts", "only what a record depends on", sorted(chosen), do)
    do = "A workload is an operator with its shapes, and a time is valid for one kind of machine."
    require(chosen == needed, "the parts", "all that a record depends on", sorted(chosen), do)


@exercise(
    "10.3",
    "tn.tuning.tasks(mod, params) lists the tasks; tn.tune takes three of them as tasks=[…], and trials=192.",
    'tuning.frame()["ratio"] has the time after, divided by the time before: dict(…) of it is the answer.',
    minutes=20,
    difficulty=2,
)
def shared_trials(answer):
    """The ratios of three tasks that share their trials."""
    ratios = {str(name): float(ratio) for name, ratio in dict(answer).items()}
    require(len(ratios) == 3, "the number of tasks", 3, len(ratios), "Choose three with tasks=[…].")
    do = "A ratio is the time after tuning, divided by the time before."
    require(min(ratios.values()) > 0, "the smallest ratio", "above 0", min(ratios.values()), do)
    do = "The default config takes part in the finals, so the best cannot be slower: take the column ratio."
    require(max(ratios.values()) <= 1, "the largest ratio", "1 or less", max(ratios.values()), do)
