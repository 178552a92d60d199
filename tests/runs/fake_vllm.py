"""A stand-in for vLLM's command line: the same arguments and files, in milliseconds, with every way to fail."""

FAKE_VLLM = """
import http.server, json, os, signal, sys, threading, time

def value(name, default=None):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default

def misbehave(how):
    if how == "crash":
        raise RuntimeError("the fake engine core died")
    if how == "hang":
        time.sleep(600)
    if how == "memory":
        raise MemoryError("cannot have it")
    if how == "killed":
        # What the kernel does when there is no memory left: it counts, and kills.
        with open(os.environ["FAKE_VMSTAT"], "w") as counter:
            counter.write("oom_kill 8\\\\n")
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)

HITS = [0]

def serve():
    print("fake server starts", flush=True)
    misbehave(os.environ.get("FAKE_SERVER"))
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/die":
                print("EngineDeadError: the fake engine died under way", flush=True)
                os._exit(1)
            if self.path == "/hit":
                HITS[0] += 16
            self.send_response(200)
            self.end_headers()
            if self.path.startswith("/metrics"):
                self.wfile.write(f'vllm:prefix_cache_hits_total{{engine="0"}} {HITS[0]}.0'.encode())
        def log_message(self, *_):
            pass
    class Shared(http.server.HTTPServer):
        allow_reuse_port = True
        def server_bind(self):
            import socket
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            super().server_bind()
    Shared((value("--host"), int(value("--port"))), Handler).serve_forever()

def bench():
    began, seed = time.monotonic(), value("--seed")
    how = os.environ.get("FAKE_BENCH") if os.environ.get("FAKE_SEED", seed) == seed else None
    print("fake bench starts", flush=True)
    misbehave(how)
    if how == "compile":
        import glob
        with open(glob.glob(os.environ["FAKE_LOG"])[0], "a") as log:
            log.write("INFO torch.compile takes 3.2 s in total\\\\n")
    if how == "kill-server":
        import urllib.request
        try:
            urllib.request.urlopen(f"http://{value('--host')}:{value('--port')}/die", timeout=5)
        except OSError:
            pass
        raise RuntimeError("the client lost its server")
    if how == "kernel":
        open(os.path.join(os.environ["TRITON_CACHE_DIR"], "kernel.cubin"), "w").close()
    if how == "cached":
        import urllib.request
        urllib.request.urlopen(f"http://{value('--host')}:{value('--port')}/hit", timeout=5)
    if how == "silent":
        return
    result = {
        "completed": 4, "failed": 0, "num_prompts": 4, "duration": 1.5,
        "total_input_tokens": 40, "total_output_tokens": 80,
        "mean_tpot_ms": 10.0 + int(value("--seed")), "output_throughput": 53.3,
        "generated_texts": [os.environ.get("FAKE_TEXT", "a"), "b", "c", "d"], "errors": ["", "", "", ""],
    }
    if how == "nan":
        result["mean_tpot_ms"] = float("nan")
    if how == "missing":
        del result["mean_tpot_ms"]
    if how == "short":
        result["total_output_tokens"] = 79
    if how == "failed":
        result.update(completed=3, failed=1, errors=["", "Traceback\\\\nConnectionError: gone", "", ""])
    if sys.argv[2] == "latency":
        result = {"avg_latency": 0.5, "latencies": [0.5], "percentiles": {"50": 0.5}}
        path = value("--output-json")
    else:
        path = os.path.join(value("--result-dir"), value("--result-filename"))
    with open(path, "w") as stream:
        json.dump(result, stream)
    if "FAKE_TIMES" in os.environ:
        with open(os.environ["FAKE_TIMES"], "a") as stream:
            print(began, time.monotonic(), file=stream)

def main():
    if "--help" in sys.argv:
        misbehave(os.environ.get("FAKE_CLIENT"))
        print("usage: fake")
        sys.exit(0)
    serve() if sys.argv[1] == "serve" else bench()

if __name__ == "__main__":
    main()
""".replace("\\\\n", "\\n")
