"""The driver TVMC from Python, as scripts of 2021 called it (TVM 0.8): python tvmc_in_python.py MODEL OUT"""

import sys
from pathlib import Path

import numpy as np
from tvm.driver import tvmc

model = tvmc.load(sys.argv[1], shape_dict={"image": [1, 1, 32, 32]})
print(str(model.mod).splitlines()[0])
out = Path(sys.argv[2])
package = tvmc.compile(model, target="llvm", package_path=str(out.with_suffix(".tar")), opt_level=3)

# Saved, and loaded as another process would.
again = tvmc.TVMCPackage(package_path=package.package_path)
x = np.random.default_rng(0).standard_normal((1, 1, 32, 32)).astype("float32")
result = tvmc.run(again, device="cpu", inputs={"image": x}, repeat=2, number=1)
print(result.format_times().splitlines()[0].strip())
print("outputs:", *result.outputs)
np.savez(out, x=x, scores=result.get_output("output_0"))
