// Names and help texts of all options: what a stranger reads first.
#include "command_line.h"

namespace kvferry::transfer_check {
namespace {

using Options = std::vector<OptionSpec>;

Options join(std::initializer_list<Options> lists) {
  Options all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

const Options kLayout = {
    {"--model-config", "FILE", "Layout", "config.json of the model, as published on Hugging Face"},
    {"--page-size", "N", "Layout", "tokens per page (default 64; 256 for compressed MLA)"},
    {"--dtype", "TYPE", "Layout", "type of the cache: bf16, fp16, fp8 ... (default: the type in the config)"},
    {"--kv-layout", "NAME", "Layout", "variant where a kind has several; online: short C128 state of compressed MLA"},
    {"--layers", "N", "Layout", "only the first N layers of the model (default: all)"},
    {"--draft-layers", "N", "Layout", "speculative layers behind the last stage, on both sides (default 0)"},
    {"--prefill", "tp=N,pp=N", "Layout",
     "ranks of the prefill side (default tp=1,pp=1); pp=2 gives extra layers to the last stages, pp=4+3 says the layers of each"},
    {"--decode", "tp=N,pp=N", "Layout", "ranks of the decode side, in the same form"},
    {"--pool-pages", "N", "Layout", "pages of every pool made from the config (default: the request's pages and some that must stay untouched)"},
    {"--pool", "FILE", "Layout", "pool file of both sides, instead of --model-config"},
    {"--source-pool", "FILE", "Layout", "pool file of the prefill side; needs --target-pool"},
    {"--target-pool", "FILE", "Layout", "pool file of the decode side; needs --source-pool"},
};

const Options kRequest = {
    {"--tokens", "N", "Request", "tokens of the request (default 1000)"},
    {"--run-length", "N", "Request", "pages per run that step by one on both sides (default 1: no two neighbours)"},
    {"--seed", "N", "Request", "decides where the pages lie and which request slots are used (default 1)"},
    {"--source-pages", "FILE", "Request", "page indices on the prefill side: one per line, or a JSON list; needs --target-pages"},
    {"--target-pages", "FILE", "Request", "page indices on the decode side, as many"},
};

const Options kTransport = {
    {"--backend", "NAME", "Transport", "ucx, verbs or loopback (default ucx)"},
    {"--lane", "NAME", "Transport", "auto, shm, tcp or rc (default auto)"},
    {"--memory", "KIND", "Transport", "user: plain memory of the process; allocated: from the backend, which gives the mapped lane (default user)"},
    {"--listen", "HOST:PORT", "Transport",
     "where the decode side listens (default 127.0.0.1:0, an automatic port); further ranks take the next ports"},
    {"--timeout", "SECONDS", "Transport", "most time for any one step: start, connect, move, compare (default 60)"},
};

const Options kOutput = {
    {"--json", "", "Output", "one JSON document on stdout, errors too (docs/transfer-check.md has the schema)"},
};

constexpr std::string_view kExitStatus =
    "Exit status: 0 the check holds; 1 it does not (wrong bytes, time-out, lost, killed or frozen peer); 2 wrong use (option, layout, list, page,\n"
    "unsupported kind); 3 this host or peer lacks something (plugin missing or too new, no device, port in use, locked memory).\n";

SubcommandSpec devices_spec() {
  return {"devices", "What this host offers: plugins, devices, lanes, limits, each refusal with its reason",
          "Example:\n  transfer-check devices\n\n" + std::string(kExitStatus),
          join({{{"--backend", "NAME", "Transport", "only this plugin (default: every plugin found)"}}, kOutput})};
}

SubcommandSpec explain_spec() {
  return {
      "explain", "The plan of a source and a target layout, without running it",
      "Examples:\n"
      "  transfer-check explain --model-config=Llama-3.1-8B.json --page-size=16 --prefill=tp=1,pp=2\n"
      "  transfer-check explain --source-pool=prefill.json --target-pool=decode.json --tokens=5000\n\n" +
          std::string(kExitStatus),
      join({kLayout,
            kRequest,
            {{"--backend", "NAME", "Plan", "plan with the limits of this backend (default: one piece per write, 1 GiB per write, no plugin needed)"},
             {"--write-pool", "FILE", "Plan", "write the pool of one rank as a pool file"},
             {"--write-pool-of", "SIDE,tp=N,pp=N", "Plan", "which rank --write-pool writes (default decode,tp=0,pp=0)"},
             {"--sglang-lists", "FILE", "Plan", "check SGLang's flat pointer lists with their declared counts instead of a layout"}},
            kOutput})};
}

SubcommandSpec self_spec() {
  return {"self", "Move a request between prefill and decode processes on this host and compare every byte of the target pool",
          "Examples:\n"
          "  transfer-check self --model-config=Llama-3.1-8B.json --page-size=16 --tokens=2048 --prefill=tp=1,pp=2\n"
          "  transfer-check self --model-config=DeepSeek-V3.json --layers=8 --corrupt\n"
          "  transfer-check self --model-config=Llama-3.1-8B.json --fault=kill-decode\n\n" +
              std::string(kExitStatus),
          join({kLayout,
                kRequest,
                kTransport,
                {{"--corrupt", "", "Check", "flip one byte on the way: the check must then fail and name the byte"},
                 {"--fault", "WHAT", "Check",
                  "kill-decode, kill-prefill, freeze-decode or freeze-prefill in mid-transfer: shows when each side learned it (exit status 1)"}},
                kOutput})};
}

SubcommandSpec bench_spec() {
  return {"bench", "Speed of random scattered pieces between two processes, against the raw transport in the same run",
          "Example:\n  transfer-check bench --lane=shm,mapped,tcp --piece-bytes=1KiB,4KiB,32KiB,1MiB\n\n" + std::string(kExitStatus),
          join({{{"--lane", "LIST", "Bench", "auto, shm, mapped, tcp, rc; several between commas (default auto)"},
                 {"--piece-bytes", "LIST", "Bench", "sizes of a piece (default 1KiB,4KiB,32KiB,1MiB)"},
                 {"--pool-bytes", "N", "Bench", "size of each side's pool (default 256MiB)"},
                 {"--rounds", "N", "Bench", "interleaved pairs per figure, of which the medians are reported (default 9)"},
                 {"--seed", "N", "Bench", "decides where the pieces lie (default 1)"},
                 {"--backend", "NAME", "Bench", "ucx, verbs or loopback (default ucx)"},
                 {"--timeout", "SECONDS", "Bench", "most time for any one step (default 60)"}},
                kOutput})};
}

}  // namespace

const std::vector<SubcommandSpec>& subcommands() {
  static const std::vector<SubcommandSpec> all = {devices_spec(), explain_spec(), self_spec(), bench_spec()};
  return all;
}

}  // namespace kvferry::transfer_check
