#!/bin/bash
nvidia-smi --query-gpu=name,power.limit,clocks.max.sm,driver_version,temperature.gpu --format=csv,noheader
timeout 20 ./sanitize
timeout 40 python3 check.py 2>&1 | head -60 | cut -c1-100
timeout 50 python3 table.py 24 2>&1
