"""Note C, as in 2024 (TVM 0.15): tune an ONNX network with XGBTuner, build with the records, compare the times."""

import sys
import timeit

import numpy as np
import onnx
import tvm
import tvm.relay as relay
from tvm import autotvm
from tvm.autotvm.tuner import XGBTuner
from tvm.contrib import graph_executor

model_file, picture_file, records, output_file = sys.argv[1:]
img_data = np.load(picture_file)
input_name = "image"
mod, params = relay.frontend.from_onnx(onnx.load(model_file), {input_name: img_data.shape})
target = "llvm"


def build_and_run():
    with tvm.transform.PassContext(opt_level=3, config={}):
        lib = relay.build(mod, target=target, params=params)
    dev = tvm.device(str(target), 0)
    module = graph_executor.GraphModule(lib["default"](dev))
    module.set_input(input_name, img_data)
    module.run()
    output = module.get_output(0).numpy()
    times = np.array(timeit.Timer(lambda: module.run()).repeat(repeat=3, number=3)) * 1000 / 3
    return output, {"mean": np.mean(times), "median": np.median(times), "std": np.std(times)}


unoptimized_output, unoptimized = build_and_run()

runner = autotvm.LocalRunner(number=2, repeat=1, timeout=10, min_repeat_ms=0, enable_cpu_cache_flush=True)
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
    tuner_obj = XGBTuner(task, loss_type="reg", feature_type="knob")
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
    optimized_output, optimized = build_and_run()

np.testing.assert_allclose(optimized_output, unoptimized_output, rtol=1e-4, atol=1e-4)
np.save(output_file, optimized_output)
print("optimized: %s" % (optimized))
print("unoptimized: %s" % (unoptimized))
