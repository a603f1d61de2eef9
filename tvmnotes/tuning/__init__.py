"""Tuning: which workloads a network has, and what a config of one takes.

tasks    the workloads of a module
trial    one config of a workload, built, checked and timed in a worker process
"""
