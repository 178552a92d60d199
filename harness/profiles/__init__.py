"""Where the GPU time of a run goes: recording with Nsight Systems, reading exports and traces, tables, differences, charts."""
