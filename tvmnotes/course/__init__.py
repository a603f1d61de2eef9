"""The course layer: networks, digits, images, plots, and the tools that lessons use.

asm         multiply-adds and the inner loop in a kernel's assembly
damage      damaged copies of a saved network
digits      ResNet-20 for handwritten digits, and its test images
flowchart   graphs as SVG
lessons     the plan of the course, in README.md and notebook 00
models      networks by name, with pretrained or seeded weights
plots       the figures of the notebooks
processes   programs in the background, such as a tracker and servers
publish     a site, slides and a handout, made of the stored notebooks
show        TVM programs as highlighted TVMScript
vision      ImageNet's preprocessing and top-k classes
"""
