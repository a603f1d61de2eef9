"""Note B, as in 2019 (TVM 0.6): networks to choose from, three files saved and loaded, tuning with four tuners.

b_tuning_2019.py NETWORK FOLDER, where NETWORK is "custom", an MXNet checkpoint in FOLDER, or one of relay.testing's.
"""
# ruff: noqa: SIM115

import os
import sys

import numpy as np
import tvm
import tvm.contrib.graph_runtime as runtime
from tvm import autotvm, relay
from tvm.autotvm.graph_tuner import DPTuner, PBQPTuner
from tvm.autotvm.tuner import GATuner, GridSearchTuner, RandomTuner, XGBTuner
from tvm.contrib import graph_runtime
from tvm.contrib.util import tempdir

network, folder = sys.argv[1:]
log_file = os.path.join(folder, "%s.log" % network)
graph_opt_sch_file = os.path.join(folder, "%s_graph_opt.log" % network)
input_shape = (1, 3, 32, 32)


def get_network(name, batch_size):
    """The network and its parameters, for images of 32 x 32."""
    if name == "resnet-18":
        mod, params = relay.testing.resnet.get_workload(batch_size, 10, num_layers=18, image_shape=input_shape[1:])
    elif name == "vgg-11":
        mod, params = relay.testing.vgg.get_workload(batch_size, 10, image_shape=input_shape[1:], num_layers=11)
    elif name == "mobilenet":
        mod, params = relay.testing.mobilenet.get_workload(batch_size, 10, image_shape=input_shape[1:])
    elif name == "squeezenet_v1.1":
        mod, params = relay.testing.squeezenet.get_workload(batch_size, 10, "1.1", image_shape=input_shape[1:])
    elif name == "inception_v3":
        mod, params = relay.testing.inception_v3.get_workload(batch_size, 10, image_shape=(3, 299, 299))
    elif name == "custom":
        import mxnet as mx

        sym, arg_params, aux_params = mx.model.load_checkpoint(os.path.join(folder, "net"), 0)
        mod, params = relay.frontend.from_mxnet(
            sym, shape={"data": input_shape}, arg_params=arg_params, aux_params=aux_params
        )
        func = mod["main"]
        func = relay.Function(func.params, relay.nn.softmax(func.body), None, func.type_params, func.attrs)
        mod = relay.Module.from_expr(func)
    else:
        raise ValueError("Unsupported network: " + name)
    return mod, params


use_gpu = False
target = tvm.target.cuda() if use_gpu else tvm.target.create("llvm")
target_host = "llvm"
ctx = tvm.gpu(0) if use_gpu and tvm.gpu(0).exist else tvm.context(str(target), 0)
print("%s: device type %d, id %d" % (target, ctx.device_type, ctx.device_id))

measure_options = {
    "local": autotvm.measure_option(
        builder=autotvm.LocalBuilder(timeout=10),
        runner=autotvm.LocalRunner(number=2, repeat=1, timeout=20, min_repeat_ms=0, cooldown_interval=0),
    ),
    "rpc": autotvm.measure_option(
        builder=autotvm.LocalBuilder(timeout=10),
        runner=autotvm.RPCRunner("1080ti", "0.0.0.0", 9190, number=20, repeat=3, timeout=4, min_repeat_ms=150),
    ),
}
tuning_option = {"tuner": "xgb", "early_stopping": None, "measure_option": measure_options["local"]}


def tune_tasks(tasks, measure_option, tuner="xgb", n_trial=2, early_stopping=None, log_filename="tuning.log",
               use_transfer_learning=True, try_winograd=True):  # fmt: skip
    if try_winograd:
        for i in range(len(tasks)):
            tsk = autotvm.task.create(tasks[i].name, tasks[i].args, tasks[i].target, tasks[i].target_host, "winograd")
            if tsk.workload[1][1][1] >= 16:
                tasks[i] = tsk
    tmp_log_file = log_filename + ".tmp"
    if os.path.exists(tmp_log_file):
        os.remove(tmp_log_file)
    for i, tsk in enumerate(reversed(tasks)):
        prefix = "[Task %2d/%2d] " % (i + 1, len(tasks))
        if tuner == "xgb" or tuner == "xgb-rank":
            tuner_obj = XGBTuner(tsk, loss_type="rank")
        elif tuner == "ga":
            tuner_obj = GATuner(tsk, pop_size=100)
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
    os.remove(tmp_log_file)


def tune_graph(graph, dshape, records, opt_sch_file, use_DP=True):
    target_op = [relay.op.nn.conv2d]
    executor = (DPTuner if use_DP else PBQPTuner)(graph, {"data": dshape}, records, target_op, target)
    executor.benchmark_layout_transform(min_exec_num=2000)
    executor.run()
    executor.write_opt_sch2record_file(opt_sch_file)


for name in ("resnet-18", "vgg-11", "mobilenet", "squeezenet_v1.1", "inception_v3"):
    print("%s: %d parameters" % (name, len(get_network(name, batch_size=1)[1])))
mod, params = get_network(network, batch_size=1)
tasks = autotvm.task.extract_from_program(
    mod["main"], target=target, target_host=target_host, params=params, ops=(relay.op.nn.conv2d,)
)
print("%d tasks" % len(tasks))
for name in ("gridsearch", "random", "ga", "xgb"):
    tune_tasks(tasks[:2], **dict(tuning_option, tuner=name), log_filename=log_file)
tune_graph(mod["main"], input_shape, log_file, graph_opt_sch_file)

with autotvm.apply_history_best(log_file), relay.build_config(opt_level=3):
    graph, lib, built_params = relay.build_module.build(mod, target=target, target_host=target_host, params=params)

# Library, graph and parameters: out and in again.
temp = tempdir()
path_lib = temp.relpath("deploy_lib.tar")
lib.export_library(path_lib)
with open(temp.relpath("deploy_graph.json"), "w") as fo:
    fo.write(graph)
with open(temp.relpath("deploy_param.params"), "wb") as fo:
    fo.write(relay.save_param_dict(built_params))
print(sorted(temp.listdir()))

loaded_json = open(temp.relpath("deploy_graph.json")).read()
loaded_lib = tvm.module.load(path_lib)
loaded_params = bytearray(open(temp.relpath("deploy_param.params"), "rb").read())
module = graph_runtime.create(loaded_json, loaded_lib, ctx)
module.load_params(loaded_params)
data_tvm = tvm.nd.array(np.load(os.path.join(folder, "picture.npy")).astype("float32"), ctx)
module.set_input("data", data_tvm)
module.run()
result = module.get_output(0, tvm.nd.empty((1, 10), "float32", ctx)).asnumpy()

with autotvm.apply_graph_best(graph_opt_sch_file), relay.build_config(opt_level=3):
    graph, lib, built_params = relay.build_module.build(mod, target=target, params=params)
module = runtime.create(graph, lib, ctx)
module.set_input("data", data_tvm)
module.set_input(**built_params)
module.run()
np.savez(os.path.join(folder, "out.npz"), loaded=result, graph=module.get_output(0).asnumpy())

ftimer = module.module.time_evaluator("run", ctx, number=1, repeat=3)
prof_res = np.array(ftimer().results) * 1000
print("Mean inference time (std dev): %.2f ms (%.2f ms)" % (np.mean(prof_res), np.std(prof_res)))
