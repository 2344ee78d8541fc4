"""Checks of the Python package against the program: python3 tests/python-parts/checks.py PIPESIM.

With PIPESIM_INSTALLED=1 they check the package that is installed, which finds its own program; otherwise the repository's.
"""

import ast
import contextlib
import ctypes
import doctest
import importlib.util
import io
import json
import os
import random
import re
import subprocess
import tempfile
import unittest
import warnings
from pathlib import Path

from support import PIPESIM, ROOT, native, ps

from arguments import Arguments  # noqa: F401
from items import Items  # noqa: F401
from lines import Lines  # noqa: F401


class Checks(unittest.TestCase):
    def test_docstrings(self):
        parts = [ps, *(importlib.import_module(f"pipesim.{path.stem}") for path in Path(ps.__file__).parent.glob("_[a-z]*.py"))]
        found = [doctest.testmod(part, extraglobs={"ps": ps}) for part in parts]
        self.assertEqual(sum(one.failed for one in found), 0)
        self.assertGreater(sum(one.attempted for one in found), 12)

    def test_results_are_the_programs_json(self):
        dice = random.Random(3)
        for schedule in ps.schedules()[::3]:
            p = dice.choice([2, 4])
            args = ["predict", "--stages", str(p), "--micro", str(2 * p), "-s", schedule.name, "--costs", "F=1,I=1.5,W=0.5,comm=0.25", "-q", "--format", "json"]
            found = native(*args)
            costs = {"F": 1, "I": 1.5, "W": 0.5, "comm": 0.25}
            if found.returncode == 0:
                self.assertEqual(ps.predict(schedule.name, p, 2 * p, costs=costs).json, json.loads(found.stdout)["predictions"][0])
            else:
                with self.assertRaises(ps.Error) as caught:
                    ps.predict(schedule.name, p, 2 * p, costs=costs)
                self.assertEqual(caught.exception.code, found.returncode)
                self.assertTrue(str(caught.exception).endswith(found.stderr.strip().removeprefix("error: ")), found.stderr)

    def test_a_recorded_pipeline_is_read_back(self):
        with tempfile.TemporaryDirectory() as folder:
            recorder = ps.record(folder)
            self.assertIs(ps.record(folder), recorder)
            for _ in range(3):
                with recorder:
                    for microbatch in range(4):
                        for kind in "FB":
                            with recorder.op(kind, 0, microbatch):
                                sum(range(20_000))
            with self.assertRaises(ValueError), recorder, recorder.op("X", 0, 0):
                pass
            recorder.close()
            found = native("import", folder, "-q", "--format", "json")
            self.assertEqual(found.returncode, 0, found.stderr)
            watched = native("watch", folder, "--steps", "3")
            self.assertEqual([line.split()[:2] for line in watched.stdout.splitlines()], [["step", str(step)] for step in range(3)])
        self.assertIn("24 of 24 ops", json.loads(found.stdout)["verdict"])

    def test_several_and_their_options(self):
        both = ps.predict(["1f1b", "zb-v"], 4, 8, delivery="buffered(2)", memory_cap=4)
        self.assertEqual([one.schedule for one in both], ["1f1b", "zb-v"])
        self.assertEqual(both[0].per_device[0].peak_activations, 4)
        self.assertEqual(ps.explain("1f1b", 2, 4).bounds.best, 15)
        self.assertIn("1f1b", repr(both))

    def test_errors_have_the_programs_text_and_kind(self):
        with self.assertRaisesRegex(ps.UsageError, "no schedule is called|known"):
            ps.predict("1f2b", 4, 8)
        with self.assertRaisesRegex(ps.ScheduleError, "0F3 has no backward"):
            ps.predict(ps.Schedule("def device(r, p, m):\n    return m * F + (m - 1) * B\n"), 2, 4)
        with self.assertRaises(AttributeError):
            ps.predict("1f1b", 2, 4).nonsense

    def test_annotated_fields_are_those_of_the_json(self):
        # a mixture that does not fit
        model = ps.predict_model("qwen3-30b-a3b", "h100-sxm", stages=1, dp=16, ep=16, batch=1024, seq=4096)
        plans = ps.plan("llama-3-8b", "h100-sxm", gpus=8, batch=32, seq=8192)
        self.assertIn(f"--tensor-model-parallel-size {plans[0].tp} ", plans[0].to("megatron"))
        with self.assertRaisesRegex(ps.UsageError, "torchtitan .* cannot train this plan: .*ZeRO"):
            plans[0].to("torchtitan")
        with self.assertRaisesRegex(ps.UsageError, "expected one of .*megatron.*, found 'nemo'"):
            plans[0].to("nemo")
        for found in (model, ps.explain("zb-v", 2, 4), ps.check("zb-v", 2, 4), plans[0]):
            annotated = {field for kind in type(found).__mro__ for field in vars(kind).get("__annotations__", ())}
            self.assertEqual(annotated - {"job", "verdict", "adapter_parameters", "shard", "sizes"}, set(found.json), type(found))
        self.assertLess(set(ps.predict("zb-v", 2, 4).json), set(model.json))

    def test_a_job_says_what_is_asked(self):
        job = {"job": ROOT / "examples/job/train.sh", "hardware": "h100-sxm"}
        step = ps.predict(**job, measured="11.9s")
        self.assertEqual((step.job.reading.tp, step.job.reading.dp, step.verdict.outcome), (2, 4, "slower"))
        self.assertEqual(ps.predict(**job, job_env={"NODES": 8}).job.reading.dp, 8)
        self.assertEqual(ps.predict(**job, recompute="none").iteration_s, ps.plan(**job).mine.smallest.iteration_s)
        self.assertEqual(ps.explain(**job).job.framework, "megatron-core")
        self.assertEqual(ps.check(job=job["job"]).microbatches, 64)
        self.assertTrue(step._repr_svg_().startswith("<svg"))
        with self.assertRaisesRegex(ps.UsageError, "job"):
            ps.predict("1f1b", 4, 8, job_env={"A": 1})

    def test_timelines_and_pictures(self):
        prediction = ps.predict(ps.Schedule("def device(r, p, m):\n    return m * F + m * B\n", "mine"), 2, 2)
        spans = [span for span in prediction.timeline if span["queue"] == "compute"]
        self.assertEqual(len(spans), 8)
        self.assertEqual(max(span["end"] for span in spans), prediction.makespan)
        self.assertTrue(prediction._repr_svg_().startswith("<svg"))
        with tempfile.TemporaryDirectory() as folder:
            for name in ("a.svg", "b.trace.json", "c.html", "d.png"):
                prediction.save(Path(folder) / name)
                self.assertGreater((Path(folder) / name).stat().st_size, 500)

    def test_several_are_a_table_in_notebooks(self):
        shown = ps.predict(["1f1b", "zb-v"], 2, 4)._repr_html_()
        self.assertEqual((shown.count("<tr>"), "<th>makespan</th>" in shown, "<td>zb-v</td>" in shown), (3, True, True))
        self.assertIn("<svg", shown)
        self.assertNotIn("<svg", ps.plan("llama-3-8b", "h100-sxm", gpus=8, batch=32, seq=8192)._repr_html_())

    def test_an_explanation_prints_what_a_terminal_shows(self):
        shown = subprocess.run([PIPESIM, "explain", "-p", "4", "-m", "8", "-s", "1f1b", "-q"], capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "400"}).stdout
        self.assertIn(str(ps.explain("1f1b", 4, 8)) + "\n", shown)
        self.assertIn(str(ps.explain("1f1b", 4, 8)), str(ps.explain(["gpipe", "1f1b"], 4, 8)))

    def test_every_result_is_shown_in_notebooks_with_rounded_numbers(self):
        one = ps.predict("zb-v", 4, 8, costs={"F": 1, "I": 1.2, "W": 0.8, "comm": 0.1})
        trace = ps.import_traces(ROOT / "tests/golden/kineto/clock_1f1b_p4_m8")
        plans = ps.plan("llama-3-8b", "h100-sxm", gpus=8, batch=32, seq=8192)
        for found in (one, one.timeline, one.per_device[0], ps.explain("1f1b", 2, 4), ps.explain(["1f1b", "gpipe"], 2, 4), ps.check("1f1b", 2, 4), ps.check(["1f1b"], 2, 4), plans, plans[0], trace, ps.schedules()):
            shown = found._repr_html_()
            self.assertTrue(shown.startswith("<"), type(found))
            digits = [cell.replace(".", "").lstrip("0") for cell in re.findall(r"<td>-?(\d+\.\d+)</td>", shown)]
            self.assertLessEqual(max(map(len, digits), default=0), 4, type(found))
        self.assertIn(f"<td>{one.bubble:.4f}".rstrip("0"), one._repr_html_())

    def test_warnings_that_change_the_answer_are_pythons(self):
        step = {"stages": 4, "tp": 8, "micro": 32, "seq": 8192}
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = ps.predict_model("llama-3-70b", "h100-sxm", "1f1b", **step)
            ps.predict_model("llama-3-70b", "h100-sxm", "1f1b", **step, sequence_parallel=True)
        self.assertEqual([(one.category, Path(one.filename).name) for one in told], [(ps.PipesimWarning, "checks.py")])
        self.assertRegex(str(told[0].message), "1f1b does not fit: .* 98.4 GiB of 80.0 GiB")
        self.assertEqual(found.misfit.remedy.change, "--sequence-parallel")
        with warnings.catch_warnings():
            warnings.simplefilter("error", ps.PipesimWarning)
            with self.assertRaises(ps.PipesimWarning):
                ps.predict_model("llama-3-70b", "h100-sxm", "1f1b", **step)

    def test_errors_name_the_files_of_the_caller(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "theirs.star"
            path.write_text("def device(r, p, m):\n    return m * F + m * X\n")
            for schedule, name in ((ps.Schedule(path.read_text(), "mine"), "mine.star"), (ps.Schedule.read(path), str(path))):
                for ask in (ps.predict, ps.explain, ps.check):
                    with self.assertRaises(ps.Error) as caught:
                        ask(schedule, 2, 4)
                    self.assertTrue(str(caught.exception).startswith(f"{name} is not a schedule"), caught.exception)
                    self.assertIn(f"--> {name}:2:", str(caught.exception))
                    self.assertEqual(str(caught.exception).replace(str(path), "").count("/tmp"), 0)
            with self.assertRaisesRegex(ps.UsageError, "x.odd"):
                ps.predict("1f1b", 2, 4).save(Path(folder) / "x.odd")

    def test_traces_exports_and_trainings(self):
        traces = ROOT / "tests/golden/kineto/clock_1f1b_p4_m8"
        found = ps.import_traces(traces, step=5)
        self.assertEqual(found.json, json.loads(native("import", str(traces), "--step", "5", "-q", "--format", "json").stdout))
        self.assertEqual({span["device"] for span in found.timeline}, set(range(4)))
        self.assertEqual(ps.export("zb-v", 4, 8, "pytorch-csv"), native("export", "-p", "4", "-m", "8", "-s", "zb-v", "--to", "pytorch-csv").stdout)
        with tempfile.TemporaryDirectory() as folder:
            run, model = Path(folder) / "run", {"blocks": 2, "heads": 2, "channels": 16, "seq": 8}
            first = ps.train("1f1b", 2, 2, output=run, steps=2, progress=False, **model)
            self.assertEqual((len(first.losses), Path(first.checkpoint).name), (2, "step-000002"))
            self.assertEqual([step.step for step in ps.train(resume=run, steps=3, progress=False).steps], [1, 2, 3])
            # 300,591 tokens are 18,787 steps of 2 x 8
            self.assertEqual(len(ps.train(resume=run, epochs=5 / 18787, progress=False).losses), 5)
            self.assertIn("<svg", (run / "report/loss.svg").read_text())
            told = native("train", "--resume", str(run), "--steps", "6").stderr
            self.assertIn("300591 tokens of 257 ids in the built-in text; a model of ", told)
            self.assertIn(" parameters; 16 tokens per step, 6 steps, 0.0 % of an epoch", told)
            text = ps.generate(run, "cat", tokens=5)
            self.assertTrue(text.startswith("cat") and text == native("generate", str(run), "--prompt", "cat", "--tokens", "5").stdout[:-1])
            with self.assertRaisesRegex(ps.UsageError, "schedule"):
                ps.train(output=run)

    def test_items_of_jobs_and_plans_have_timelines(self):
        several = ps.predict(job=ROOT / "examples/job/train.sh", hardware="h100-sxm", micro_batch_size=[1, 2])
        self.assertEqual([one.micro_batch_size for one in several], [1, 2])
        for one in [*several, ps.plan("llama-3-8b", "h100-sxm", gpus=8, batch=32, seq=8192)[0].predict()]:
            self.assertGreater(len(one.timeline), 10)
        self.assertEqual(several[0].job.framework, "megatron-core")

    def test_all_names_exist(self):
        for name in ps.__all__:
            self.assertTrue(hasattr(ps, name), name)
        public = {name for name, value in vars(ps).items() if not name.startswith("_") and getattr(value, "__module__", "").startswith("pipesim")}
        self.assertEqual(public - {"schedule_words"} - set(ps.__all__), {"Asked", "of_job"})

    def test_the_notebook_prints_what_it_shows(self):
        notebook = json.loads((ROOT / "docs/pipesim.ipynb").read_text(encoding="utf-8"))
        names, printed = {}, 0
        for cell in (cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
            *lines, last = ast.parse("".join(cell["source"])).body
            told = io.StringIO()
            with contextlib.redirect_stdout(told):
                exec(compile(ast.Module(lines, []), "cell", "exec"), names)
                shown = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if isinstance(last, ast.Expr) else exec(compile(ast.Module([last], []), "cell", "exec"), names)
            found = told.getvalue() + ("" if shown is None else repr(shown))
            expected = ["".join(output.get("text") or output["data"]["text/plain"]) for output in cell["outputs"]]
            self.assertEqual(found.strip(), "".join(expected).strip())
            printed += bool(found)
        self.assertGreater(printed, 4)

    def test_timelines_are_arrow_streams(self):
        from pipesim import _arrow

        timeline = ps.predict("zb-v", 2, 4, costs={"comm": 0.1}).timeline
        capsule = timeline.__arrow_c_stream__()
        address = _arrow._pointer(id(capsule), b"arrow_array_stream")
        stream = ctypes.cast(address, ctypes.POINTER(_arrow._Stream)).contents
        schema, batch, end = _arrow._Schema(), _arrow._Array(), _arrow._Array()
        self.assertEqual([stream.get_schema(stream, schema), stream.get_next(stream, batch), stream.get_next(stream, end)], [0, 0, 0])
        names = [schema.children[k].contents.name.decode() for k in range(schema.n_children)]
        self.assertEqual((names, batch.length, bool(end.release)), (list(timeline[0]), len(timeline), False))
        starts = batch.children[names.index("start")].contents.buffers[1]
        self.assertEqual(list((ctypes.c_double * len(timeline)).from_address(starts)), [span["start"] for span in timeline])
        schema.release(schema)
        batch.release(batch)
        del stream, capsule
        self.assertEqual(_arrow._kept, {}, "memory is not given back")

    @unittest.skipUnless(importlib.util.find_spec("polars") and importlib.util.find_spec("pyarrow"), "polars and pyarrow are not installed")
    def test_data_frames_take_timelines(self):
        import polars
        import pyarrow

        timeline = ps.predict("zb-v", 2, 4, costs={"comm": 0.1}).timeline
        self.assertEqual(polars.DataFrame(timeline).to_dicts(), list(timeline))
        self.assertEqual(pyarrow.table(timeline).to_pylist(), list(timeline))

    def test_orders_come_from_torch_and_go_back(self):
        class ScheduleInterleaved1F1B:  # what PyTorch's object has
            def __init__(self, order):
                self.pipeline_order = order

        for name in ("1f1b", "interleaved-1f1b", "zb-v", "dualpipe-v", "interleaved-zb"):
            for p, m in ((2, 4), (4, 8)):
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / "x.csv"
                    self.assertEqual(native("export", "--stages", str(p), "--micro", str(m), "-s", name, "--to", "pytorch-csv", "-q", "-o", str(path)).returncode, 0)
                    order = {rank: [cell or None for cell in line.split(",")] for rank, line in enumerate(path.read_text().splitlines())}
                schedule = ps.from_torch(ScheduleInterleaved1F1B(order))
                self.assertEqual(schedule.name, "Interleaved1F1B")
                self.assertEqual(ps.predict(schedule, p, m).makespan, ps.predict(name, p, m).makespan, (name, p, m))
        with self.assertRaisesRegex(ps.UsageError, "pipeline_order"):
            ps.from_torch(object())

    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
    def test_orders_of_pytorchs_own_schedules_come_back(self):
        from pipesim import _schedule
        from torch.distributed.pipelining import schedules

        for name in ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"):
            for p, m in ((p, m * p) for p in (2, 3, 4, 8) for m in (2, 3, 4)):
                stages = [_schedule._Stage(chunk * p, 2 * p, p) for chunk in range(2)]
                own = getattr(schedules, "Schedule" + name)(stages, m)
                back = ps.from_torch(own).to_torch(stages, m).pipeline_order
                orders = [[[str(action) for action in one[rank] if action is not None] for rank in sorted(one)] for one in (own.pipeline_order, back)]
                self.assertEqual(*orders, (name, p, m))
        with self.assertRaisesRegex(ps.UsageError, "one stage per device"):
            ps.from_torch(schedules.Schedule1F1B, 2, 4)

    def test_a_plan_and_a_model(self):
        found = ps.plan("llama-3-8b", "h100-sxm", gpus=8, batch=32, seq=4096)
        self.assertGreater(len(found), 1)
        self.assertTrue(ps.predict_model("llama-3-8b", "h100-sxm", stages=2, tp=4, micro=8, seq=4096).iteration_s > 0)

    def test_a_training(self):
        found = ps.run("1f1b", 2, 4, progress=False, blocks=2, channels=32, heads=2, seq=16, steps=2, warmup=1)
        self.assertIn("1f1b", json.dumps(found.json))


if __name__ == "__main__":
    unittest.main()
