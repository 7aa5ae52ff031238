#!/bin/bash
gunzip -kf driver.90a.gz; D=./driver.90a
timeout 6 compute-sanitizer --tool memcheck $D first 2 2>&1 | head -40
prof() { timeout 12 ncu --set full --section SourceCounters -f -k regex:narrow_gemv -s 1 -c 1 -o p $D once $* > ncu.log 2>&1 || tail -3 ncu.log; ncu -i p.ncu-rep --page details 2>/dev/null | grep -E "Duration|Executed Ipc|Issue Slots|One or More|Eligible|Memory Throughput|SM Frequency|Registers|bank conf|L1/TEX Hit|Max Band|Theoretical Occ|Achieved|conflict"; ncu -i p.ncu-rep --page source --csv > s.csv 2>/dev/null; python3 top.py s.csv; }
echo == u4 m1; prof 0 1 14336 4096 2 4 4 1 2
echo == u4 m8; prof 0 8 14336 4096 2 7 2 2 2
rm -f driver.90a p.ncu-rep s.csv
