"""The old tools on top of Relay.

tvmc          `tvm.driver.tvmc`: compile, run and tune a model file
tvmc_command  its command line
relay_viz     `tvm.contrib.relay_viz`: graphs as text or DOT
tedd          `tvm.contrib.tedd`: graphs of a TE schedule
"""
