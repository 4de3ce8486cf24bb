"""What `make gpu-bench` and `make gpu-test` run on a host with one GPU and no network: real engines with
random weights, OrbitKV and its peers side by side. `run.py` is the entry; each part writes rows as it
goes."""
