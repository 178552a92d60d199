"""A stand-in for SGLang's server and its three scripts, which count and write as SGLang 0.5.14 does."""

SERVER = """
import http.server, sys, urllib.parse

COUNTS = {}

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path, _, query = self.path.partition("?")
        for name, value in urllib.parse.parse_qsl(query):
            COUNTS[name] = COUNTS.get(name, 0) + int(value)
        self.send_response(200)
        self.end_headers()
        if path.startswith("/metrics"):
            lines = [f'sglang:{name}_total{{model_name="m"}} {value}.0' for name, value in COUNTS.items()]
            self.wfile.write("\\n".join(lines).encode())

    def log_message(self, *_):
        pass

if __name__ == "__main__":
    assert "--disable-radix-cache" in sys.argv and "--enable-metrics" in sys.argv
    value = lambda name: sys.argv[sys.argv.index(name) + 1]
    # With SO_REUSEADDR alone, as uvicorn binds.
    http.server.HTTPServer((value("--host"), int(value("--port"))), Handler).serve_forever()
"""

SERVING = """
import argparse, json, os, urllib.request

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-file")
    parser.add_argument("--host")
    parser.add_argument("--port")
    parser.add_argument("--seed", type=int)
    args, _ = parser.parse_known_args()
    counted = os.environ.get("FAKE_COUNTED", "prompt_tokens=40&generation_tokens=80")
    urllib.request.urlopen(f"http://{args.host}:{args.port}/count?{counted}", timeout=5)
    row = {
        "completed": 4, "duration": 1.5, "total_input_tokens": 40, "total_output_tokens": 80, "output_lens": [20] * 4,
        "errors": [""] * 4, "generated_texts": ["a"] * 4, "mean_tpot_ms": 10.0 + args.seed, "output_throughput": 53.3,
        "cache_report": {"total_cached_tokens": 0},
    }
    with open(args.output_file, "a") as stream:
        stream.write(json.dumps(row) + "\\n")
"""

ONE_BATCH = """
import argparse, json, os

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--result-filename")
    parser.add_argument("--random-seed", type=int)
    args, _ = parser.parse_known_args()
    print("Warmup ...")
    print("ninja: Entering directory")
    print("Benchmark ...")
    print(os.environ.get("FAKE_SAYS", "Prefill. latency: 0.4 s"))
    row = {"batch_size": 4, "input_len": 10, "output_len": 20, "prefill_latency": 0.1, "total_latency": 0.5}
    if not os.environ.get("FAKE_SKIPS"):
        with open(args.result_filename, "a") as stream:
            stream.write(json.dumps(row | {"median_decode_latency": 0.01 * args.random_seed}) + "\\n")
"""
