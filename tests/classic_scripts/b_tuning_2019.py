"""Note B's tuning, as in 2019 (TVM 0.6): every convolution, transfer from earlier records, the best into one file."""

import os
import sys

import numpy as np
import onnx
import tvm
from tvm import autotvm, relay
from tvm.autotvm.graph_tuner import DPTuner
from tvm.autotvm.tuner import GATuner, GridSearchTuner, RandomTuner, XGBTuner
from tvm.contrib import graph_runtime as runtime

model_file, picture_file, log_file, output_file = sys.argv[1:]
target = "llvm"
dshape = (1, 1, 32, 32)
model = onnx.load(model_file)
mod, params = relay.frontend.from_onnx(model, {"image": dshape})

tuning_option = {
    "log_filename": log_file,
    "tuner": "random",
    "early_stopping": None,
    "measure_option": autotvm.measure_option(
        builder=autotvm.LocalBuilder(),
        runner=autotvm.LocalRunner(number=2, repeat=1, min_repeat_ms=0, cooldown_interval=0),
    ),
}


def tune_kernels(tasks, measure_option, tuner="gridsearch", early_stopping=None, log_filename="tuning.log", n_trial=2,
                 use_transfer_learning=True):  # fmt: skip
    tmp_log_file = log_filename + ".tmp"
    if os.path.exists(tmp_log_file):
        os.remove(tmp_log_file)
    for i, tsk in enumerate(tasks):
        prefix = "[Task %2d/%2d] " % (i + 1, len(tasks))
        if tuner == "xgb" or tuner == "xgb-rank":
            tuner_obj = XGBTuner(tsk, loss_type="rank")
        elif tuner == "ga":
            tuner_obj = GATuner(tsk, pop_size=50)
        elif tuner == "random":
            tuner_obj = RandomTuner(tsk)
        elif tuner == "gridsearch":
            tuner_obj = GridSearchTuner(tsk)
        else:
            raise ValueError("Invalid tuner: " + tuner)
        if use_transfer_learning and os.path.isfile(tmp_log_file):
            tuner_obj.load_history(autotvm.record.load_from_file(tmp_log_file))
        n = min(n_trial, len(tsk.config_space))
        tuner_obj.tune(
            n_trial=n,
            early_stopping=early_stopping,
            measure_option=measure_option,
            callbacks=[
                autotvm.callback.progress_bar(n, prefix=prefix),
                autotvm.callback.log_to_file(tmp_log_file),
            ],
        )
    autotvm.record.pick_best(tmp_log_file, log_filename)


tasks = autotvm.task.extract_from_program(mod["main"], target=target, params=params, ops=(relay.op.nn.conv2d,))
tune_kernels(tasks[:4], **tuning_option)

executor = DPTuner(mod["main"], {"image": dshape}, log_file, [relay.op.nn.conv2d], target)
executor.benchmark_layout_transform(min_exec_num=2000)
executor.run()
executor.write_opt_sch2record_file(log_file + ".graph")

with autotvm.apply_graph_best(log_file + ".graph"):
    with relay.build_config(opt_level=3):
        graph, lib, params = relay.build_module.build(mod, target=target, params=params)
    ctx = tvm.cpu()
    module = runtime.create(graph, lib, ctx)
    module.set_input("image", tvm.nd.array(np.load(picture_file)))
    module.set_input(**params)
    module.run()
    np.save(output_file, module.get_output(0).asnumpy())
    ftimer = module.module.time_evaluator("run", ctx, number=3, repeat=3)
    prof_res = np.array(ftimer().results) * 1000
    print("Mean inference time (std dev): %.2f ms (%.2f ms)" % (np.mean(prof_res), np.std(prof_res)))
