"""Checks of random arguments: the numbers are those of the command line that is written here by itself."""

import json
import random
import unittest
from fractions import Fraction

from support import each, native, ps

SCHEDULES = ["1f1b", "gpipe", "eager-1f1b", "zb-h1", "zb-v", "dualpipe", "chimera", "hanayo:waves=2", "interleaved-1f1b:v=2", "interleaved-zb", "looped-bfs:v=2"]


def cost(dice):
    """Returns a cost as Python and as text."""
    number = dice.randint(1, 40)
    return dice.choice([(number, str(number)), (number / 8, str(number / 8)), (Fraction(number, 4), str(number / 4)), (str(number), str(number))])


def costs(dice, p):
    """Returns costs as Python and as text: numbers, and lists per stage."""
    given, texts = {}, []
    for key in dice.sample(["F", "I", "W"], dice.randint(1, 3)) + ["comm"] * dice.randint(0, 1):
        count = p if key != "comm" and dice.random() < 0.5 else 1
        drawn = [cost(dice) for _ in range(count)]
        given[key] = [value for value, _ in drawn] if count > 1 else drawn[0][0]
        texts.append(f"{key}={':'.join(text for _, text in drawn)}")
    return given, ",".join(texts)


def machine(dice, p):
    """Returns options of the simulated machine as Python and as words."""
    slow = {dice.randrange(p): dice.choice([1.5, Fraction(5, 4), 2])}
    word = "".join(f"{device}={float(factor)}" for device, factor in slow.items())
    one = dice.choice([
        ({}, []), ({"straggler": slow}, ["--straggler", word]), ({"memory_cap": 2 * p}, ["--memory-cap", str(2 * p)]), ({"transfer": Fraction(1, 4)}, ["--transfer", "0.25"]),
        ({"delivery": "buffered(2)"}, ["--delivery", "buffered(2)"]), ({"slots": 2}, ["--slots", "2"]), ({"cores": 2, "contention": [1, 1.5]}, ["--cores", "2", "--contention", "1,1.5"]),
        ({"jitter": 0.1, "samples": 20, "jitter_seed": 3}, ["--jitter", "0.1", "--samples", "20", "--jitter-seed", "3"]), ({"transfer": 0.5, "link_scope": "egress"}, ["--transfer", "0.5", "--link-scope", "egress"]),
    ])  # fmt: skip
    return one


def layout(dice):
    """Returns a model on hardware as Python and as words."""
    p, tp, dp = dice.choice([1, 2, 4]), dice.choice([1, 2]), dice.choice([1, 2])
    given = {"model": dice.choice(["gpt2", "gpt2-medium"]), "hardware": dice.choice(["h100-sxm", "a100-sxm-80gb"]), "stages": p, "tp": tp, "dp": dp, "micro": 2 * p, "seq": 512}
    words = [word for key, value in given.items() for word in (f"--{key}", str(value))]
    more = dice.choice([({}, []), ({"zero": 1}, ["--zero", "1"]), ({"recompute": "full"}, ["--recompute", "full"]), ({"sequence_parallel": tp > 1}, ["--sequence-parallel"] * (tp > 1)), ({"micro_batch_size": 2}, ["--micro-batch-size", "2"])])
    return {**given, **more[0]}, [*words, *more[1]]


def answer(function):
    try:
        return function()
    except ps.Error as error:
        return error


def without_best(prediction):
    """Returns the fields that a prediction has alone, too."""
    return {key: value for key, value in prediction.items() if key != "best"}


class Lines(unittest.TestCase):
    def compare(self, groups, least):
        """Compares predictions with those of one command; a group has schedules, Python's call of one or all, and words."""
        found = each(lambda group: native("predict", *(word for name in group[0] for word in ("-s", name)), *group[2], "-q", "--format", "json"), groups)
        singles = each(lambda case: answer(lambda: case[1](case[0])), [(name, call) for names, call, _ in groups for name in names])
        lists = each(lambda group: answer(lambda: group[1](group[0])), groups[::4])
        compared = 0
        for number, ((names, _, words), done) in enumerate(zip(groups, found)):
            alone, singles = singles[: len(names)], singles[len(names) :]
            if done.returncode:
                self.assertTrue(all(isinstance(one, ps.Error) for one in alone), (names, words, done.stderr))
                continue
            expected = json.loads(done.stdout)["predictions"]
            if number % 4 == 0:
                self.assertEqual(lists[number // 4].json["predictions"], expected, (names, words))
            # In a list those that do not exist are left out, and options may be for one of several.
            answered = [one.json for one in alone if not isinstance(one, ps.Error)]
            self.assertLessEqual(len(answered), len(expected), (names, words))
            for one in answered:
                self.assertIn(without_best(one), [without_best(other) for other in expected], (names, words))
            compared += len(answered)
        self.assertGreaterEqual(compared, least)

    def test_random_predictions(self):
        dice = random.Random(11)
        groups = []
        for _ in range(42):
            p = dice.choice([2, 4])
            m = p * dice.randint(1, 3)
            (given, text), (options, words) = costs(dice, p), machine(dice, p)
            call = lambda schedule, p=p, m=m, given=given, options=options: ps.predict(schedule, p, m, costs=given, **options)  # noqa: E731
            groups.append((dice.sample(SCHEDULES, 4), call, ["-p", str(p), "-m", str(m), "--costs", text, *words]))
        self.compare(groups, 160)

    def test_random_models_on_hardware(self):
        dice = random.Random(12)
        groups = []
        for _ in range(12):
            given, words = layout(dice)
            groups.append((dice.sample(["1f1b", "gpipe", "zb-h1", "zb-v", "interleaved-1f1b:v=2", "eager-1f1b"], 4), lambda schedule, given=given: ps.predict_model(schedule=schedule, **given), words))
        self.compare(groups, 44)

    def test_random_explanations_and_checks(self):
        dice = random.Random(13)
        for ask, verb, name in ((ps.explain, "explain", "explanations"), (ps.check, "check", "checks")):
            cases = []
            for _ in range(12):
                p, (given, text) = 2, costs(dice, 2)
                extra = [("--costs", text)] if verb == "explain" else []
                options = {"costs": given} if extra else {}
                cases.append((dice.sample(SCHEDULES[:5], 2), p, dice.randint(1, 3) * p, options, [word for pair in extra for word in pair]))
            found = each(lambda case: native(verb, *(word for one in case[0] for word in ("-s", one)), "-p", str(case[1]), "-m", str(case[2]), *case[4], "-q", "--format", "json"), cases)
            own = each(lambda case: ask(case[0], case[1], case[2], **case[3]), cases)
            for case, done, several in zip(cases, found, own):
                self.assertEqual([one.json for one in several], json.loads(done.stdout)[name], case)
