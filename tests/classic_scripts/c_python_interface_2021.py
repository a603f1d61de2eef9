"""Note C, as in 2021 (TVM 0.8): an ONNX network, its time, its five best classes, tuning, and all of it again."""

import sys
import timeit

import numpy as np
import onnx
import tvm
import tvm.auto_scheduler as auto_scheduler
import tvm.relay as relay
from scipy.special import softmax
from tvm import autotvm
from tvm.autotvm.tuner import GATuner, XGBTuner
from tvm.contrib import graph_executor
from tvm.contrib.download import download_testdata

out_file, records = sys.argv[1:]
print("imported", auto_scheduler.__name__)

model_path = download_testdata("https://example.org/digits.onnx", "digits.onnx", module="onnx")
onnx_model = onnx.load(model_path)
np.random.seed(0)
img_data = np.load(download_testdata("https://example.org/picture.npy", "picture.npy", module="data"))

target = "llvm"
input_name = "image"
shape_dict = {input_name: img_data.shape}
mod, params = relay.frontend.from_onnx(onnx_model, shape_dict)
again, _ = relay.frontend.from_onnx(onnx_model, shape=shape_dict, dtype="float32")
assert again.astext() == mod.astext()


def build_and_run(**context):
    with tvm.transform.PassContext(opt_level=3, **context):
        lib = relay.build(mod, target=target, params=params)
    dev = tvm.device(str(target), 0)
    module = graph_executor.GraphModule(lib["default"](dev))
    dtype = "float32"
    module.set_input(input_name, img_data)
    module.run()
    tvm_output = module.get_output(0, tvm.nd.empty((1, 10), dtype, dev)).numpy()
    timing_number, timing_repeat = 2, 3
    times = (
        np.array(timeit.Timer(lambda: module.run()).repeat(repeat=timing_repeat, number=timing_number))
        * 1000
        / timing_number
    )
    return tvm_output, {"mean": np.mean(times), "median": np.median(times), "std": np.std(times)}


def print_best(output):
    scores = np.squeeze(softmax(output))
    ranks = np.argsort(scores)[::-1]
    for rank in ranks[0:5]:
        print("class='%s' with probability=%f" % (rank, scores[rank]))


output, unoptimized = build_and_run(disabled_pass=["FoldScaleAxis"], required_pass=["FastMath"])
print_best(output)

# Tune it: the target as an object prints as the string that devices are made of.
target = tvm.target.Target("llvm")
runner = autotvm.LocalRunner(number=2, repeat=1, timeout=20, min_repeat_ms=0, enable_cpu_cache_flush=True)
tuning_option = {
    "tuner": "xgb",
    "trials": 2,
    "early_stopping": 100,
    "measure_option": autotvm.measure_option(builder=autotvm.LocalBuilder(build_func="default"), runner=runner),
    "tuning_records": records,
}
tasks = autotvm.task.extract_from_program(mod["main"], target=target, params=params)
for i, task in enumerate(tasks[-3:]):
    prefix = "[Task %2d/%2d] " % (i + 1, 3)
    if tuning_option["tuner"] == "xgb":
        tuner_obj = XGBTuner(task, loss_type="reg", feature_type="knob")
    else:
        tuner_obj = GATuner(task, pop_size=50)
    tuner_obj.tune(
        n_trial=min(tuning_option["trials"], len(task.config_space)),
        early_stopping=tuning_option["early_stopping"],
        measure_option=tuning_option["measure_option"],
        callbacks=[
            autotvm.callback.progress_bar(tuning_option["trials"], prefix=prefix),
            autotvm.callback.log_to_file(tuning_option["tuning_records"]),
        ],
    )

with autotvm.apply_history_best(tuning_option["tuning_records"]):
    optimized_output, optimized = build_and_run(config={})

print_best(optimized_output)
np.testing.assert_allclose(optimized_output, output, rtol=1e-4, atol=1e-4)
print("optimized: %s" % (optimized))
print("unoptimized: %s" % (unoptimized))
np.savez(out_file, untuned=output, tuned=optimized_output)
