//! Facts of a layout, a model, a machine and a schedule, by the names that expressions use.

use pipesim_models::hardware::Hardware;
use pipesim_models::layout::{ParallelConfig, Recompute, RecomputePart};
use pipesim_models::model_spec::StageLayout;
use pipesim_models::model_spec::transformer::{Activation, Config, QkNorm, Style};
use pipesim_schedule::op::Kind;
use pipesim_schedule::placement::Placement;
use pipesim_schedule::schedule::Schedule;
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// All facts, with what they are.
pub const NAMES: &[(&str, &str)] = &[
    ("p", "devices per pipeline"),
    ("v", "stages per device; 1 without interleaving"),
    ("m", "micro-batches per pipeline and step"),
    ("stages", "p * v"),
    ("schedule", "name of a built-in schedule without its options; empty with one device"),
    ("group", "micro-batches per group of an interleaved schedule"),
    (
        "ops",
        "kinds of ops besides whole forwards and backwards: split-backward, recompute, offload, slices, vocabulary, fsdp, overlap",
    ),
    ("placement", "loop: stage s on device s mod p; v: stages r and 2p - 1 - r on device r; or another name"),
    ("csv", "format of PyTorch's that a schedule file is in, if it is one: compute_only, compute_comms"),
    ("b", "sequences per micro-batch"),
    ("batch", "global batch size: sequences per step"),
    ("seq", "tokens per sequence"),
    ("tp", "tensor-parallel degree"),
    ("cp", "context-parallel degree"),
    ("ep", "expert-parallel degree; 1 in a dense model"),
    ("etp", "expert-tensor-parallel degree; 1 in a dense model"),
    ("dp", "data-parallel degree"),
    ("edp", "expert-data-parallel degree"),
    ("world", "number of GPUs"),
    ("zero", "ZeRO stage, 0 to 3"),
    ("shard", "replicas, of dp * cp, that share what ZeRO shards"),
    ("sequence_parallel", "whether sequence parallelism is on"),
    ("precision", "of matrix products: bf16, fp16, fp32, fp8, mxfp8, nvfp4"),
    ("recompute", "none, selective, full, parts, or every (k-th layer)"),
    ("recompute_method", "of full: uniform or block; empty otherwise"),
    (
        "recompute_layers",
        "layers of a group (uniform) or of a stage (block) that are recomputed, or k of every k-th; 0 otherwise",
    ),
    ("recompute_modules", "list of recomputed parts, with Megatron's names"),
    ("attention", "flash or plain"),
    ("dispatcher", "alltoall, deepep, hybridep"),
    ("routing", "balanced, natural, capacity"),
    ("capacity_factor", "capacity of an expert as a multiple of its mean rows"),
    ("cuda_graph", "none, partial, full"),
    ("moe_overlap", "whether a forward hides the experts' communication of another micro-batch's backward"),
    ("delay_wgrad", "whether weight gradients are computed apart for that"),
    ("rounds", "passes through the pipeline per step"),
    ("layers", "transformer layers"),
    ("prediction_layers", "layers that predict further tokens"),
    ("stage_layers", "list: layers of each stage, in model order"),
    ("split", "list: layers of each stage as the framework splits them by itself, if its file has `split`"),
    ("even", "whether stages have equal numbers of layers, none predicts further tokens, and no layout was given"),
    ("layout", "contents of stages as Megatron's string, as in Et*3|(t*4|)*2t*3L"),
    ("layout_flat", "the same without groups and repetitions"),
    ("layout_stages", "list: the letters of each stage, as in Ettt"),
    ("modules", "contents of stages as torchtitan's list of lists of modules; empty if it has no name for one"),
    ("hidden", "width of the hidden state"),
    ("ffn", "width of the MLP"),
    ("heads", "query heads"),
    ("kv_heads", "key and value heads"),
    ("head_dim", "channels per head"),
    ("vocab", "vocabulary size"),
    ("gated", "whether the MLP has a gate, as in SwiGLU"),
    ("tied", "whether the head shares the embedding's weights"),
    ("mla", "whether attention is latent"),
    ("rope", "whether positions are rotary"),
    ("norm", "rms or layer"),
    ("qk_norm", "whether queries and keys are normalized by head, as in Qwen3"),
    ("windows", "whether some layers attend to a window"),
    (
        "hybrid_pattern",
        "layers as Megatron's hybrid pattern, with | between stages and / before predictions; empty if a layer has several parts",
    ),
    ("experts", "experts per layer; 0 in a dense model"),
    ("top_k", "experts per token; 0 in a dense model"),
    ("shared_experts", "width of the shared experts over an expert's; 0 without"),
    ("dense_layers", "layers without experts; 0 in a dense model"),
    ("moe_ffn", "width of an expert; 0 in a dense model"),
    ("expert_groups", "groups of experts that the router chooses from; 1 without"),
    ("hardware", "name of the hardware"),
    ("architecture", "ampere, ada, hopper, blackwell, cdna3, cdna4, or empty"),
    ("gpus_per_node", "GPUs per node"),
];

/// What is known of a layout. Expressions that name other facts are not evaluated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts(BTreeMap<&'static str, Json>);

impl Facts {
    /// Sets one fact of [`NAMES`]; another name changes nothing.
    pub fn set(&mut self, name: &str, value: impl Into<Json>) -> &mut Facts {
        if let Some((name, _)) = NAMES.iter().find(|(known, _)| *known == name) {
            self.0.insert(name, value.into());
        }
        self
    }

    /// Returns a fact, if it is known.
    pub fn get(&self, name: &str) -> Option<&Json> {
        self.0.get(name)
    }

    /// Returns the text of a fact, empty if it is unknown.
    pub fn text(&self, name: &str) -> &str {
        self.get(name).and_then(Json::as_str).unwrap_or_default()
    }

    /// Removes a fact, so that rules about it are skipped.
    pub fn forget(&mut self, name: &str) -> &mut Facts {
        self.0.remove(name);
        self
    }

    /// Adds the facts of a schedule. `built_in` is its name among the built-in ones; a schedule of a file is called like one whose ops it has.
    pub fn add_schedule(&mut self, schedule: &Schedule, built_in: Option<&str>) -> &mut Facts {
        let placement = &schedule.placement;
        let (p, v) = (placement.devices(), placement.chunks() * placement.directions());
        let name = built_in.or_else(|| like(schedule)).unwrap_or(&schedule.name);
        // one device has no pipeline; only interleaving asks for several stages there
        let v = if p == 1 && !name.starts_with("interleaved") { 1 } else { v };
        self.set("p", p).set("v", v).set("stages", placement.stages()).set("m", schedule.microbatches);
        self.set("group", if built_in.is_some() { p } else { group(schedule) });
        self.set("schedule", if p == 1 { "" } else { name });
        self.set("placement", rank_order(placement));
        if let Some(name) = built_in {
            self.set("schedule", if p == 1 { "" } else { name });
        }
        let has = |kind: Kind| schedule.ops().iter().any(|op| op.kind() == kind);
        let kinds = [
            ("split-backward", schedule.splits_backward()),
            ("recompute", schedule.recomputes() || has(Kind::R)),
            ("offload", schedule.has_copies()),
            ("slices", schedule.slices().is_cut()),
            ("vocabulary", schedule.shares_vocabulary()),
            ("overlap", schedule.has_pairs()),
        ];
        let kinds: Vec<&str> = kinds.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect();
        self.set("ops", kinds)
    }

    /// Adds the facts of a layout. `schedule` is the name of a built-in schedule without its options; `None`: of a file.
    pub fn add_layout(&mut self, layout: &ParallelConfig, schedule: Option<&str>) -> &mut Facts {
        let l = layout;
        let modules: Vec<&str> = match l.recompute {
            Recompute::Parts(parts) => {
                RecomputePart::ALL.into_iter().filter(|(_, part)| parts.has(*part)).map(|(name, _)| name).collect()
            }
            _ => Vec::new(),
        };
        let (recompute, method, layers) = match l.recompute {
            Recompute::None => ("none", "", 0),
            Recompute::Selective => ("selective", "", 0),
            Recompute::Parts(_) => ("parts", "", 0),
            Recompute::Every(step) => ("every", "", step),
            Recompute::Full => ("full", "uniform", 1),
            Recompute::Uniform(layers) => ("full", "uniform", layers),
            Recompute::Block(layers) => ("full", "block", layers),
        };
        if let Some(name) = schedule {
            self.set("schedule", if l.pp == 1 { "" } else { name });
        }
        self.set("p", l.pp).set("v", l.chunks).set("m", l.micro).set("stages", l.stages()).set("group", l.pp);
        self.set("b", l.micro_batch_size).set("batch", l.batch()).set("seq", l.sequence).set("rounds", l.rounds);
        self.set("tp", l.tp).set("cp", l.cp).set("ep", l.ep).set("etp", l.etp).set("dp", l.dp).set("edp", l.edp());
        self.set("world", l.gpus()).set("zero", l.zero as u8).set("sequence_parallel", l.sequence_parallel);
        self.set("shard", l.replicas()[0].shard);
        self.set("precision", l.precision.name()).set("recompute", recompute).set("recompute_modules", modules);
        self.set("recompute_method", method).set("recompute_layers", layers);
        self.set("dispatcher", l.dispatcher.name()).set("routing", l.routing.name());
        self.set("capacity_factor", l.routing.capacity_factor().unwrap_or(1.0));
        self.set("cuda_graph", l.cuda_graph.name()).set("moe_overlap", l.moe_overlap);
        self.set("delay_wgrad", l.delay_wgrad)
    }

    /// Adds what the stages hold. `is_given`: the user named the contents of stages.
    pub fn add_stages(&mut self, stages: &StageLayout, is_given: bool) -> &mut Facts {
        let layers: Vec<usize> = stages.stages.iter().map(|stage| stage.layers).collect();
        let is_even = layers.windows(2).all(|pair| pair[0] == pair[1]);
        self.set("even", is_even && !is_given && stages.layers()[1] == 0);
        let pattern = barred(self.text("hybrid_pattern"), &layers);
        self.set("hybrid_pattern", pattern);
        self.set("stage_layers", layers).set("layout", stages.to_string()).set("layout_flat", stages.flat());
        self.set("layout_stages", stages.flat().split('|').collect::<Vec<_>>());
        let modules = stages.modules().unwrap_or_default();
        self.set("modules", modules.into_iter().map(Json::from).collect::<Vec<Json>>())
    }

    /// Adds the sizes of a model.
    pub fn add_model(&mut self, model: &Config) -> &mut Facts {
        let c = model;
        self.set("layers", c.layers).set("prediction_layers", c.prediction_layers);
        self.set("hidden", c.channels).set("ffn", c.mlp).set("heads", c.heads).set("kv_heads", c.groups);
        self.set("head_dim", c.head_size).set("vocab", c.vocabulary).set("tied", c.tied);
        self.set("gated", c.activation == Activation::Gated).set("mla", c.latent.is_some());
        self.set("rope", c.rotary.is_some())
            .set("windows", (0..c.layers).any(|layer| c.kind(layer).attention.is_some_and(|own| own.window.is_some())))
            .set("hybrid_pattern", c.pattern.and_then(|own| own.letters(c.prediction_layers)).unwrap_or_default())
            .set("qk_norm", c.qk_norm == QkNorm::Head);
        self.set("norm", if c.style == Style::Llama { "rms" } else { "layer" });
        let Some(experts) = c.experts else {
            let of_experts = ["experts", "top_k", "shared_experts", "dense_layers", "moe_ffn"];
            of_experts.iter().for_each(|name| {
                self.set(name, 0);
            });
            return self.set("expert_groups", 1);
        };
        let dense = c.layers - c.mixtures();
        self.set("experts", experts.count).set("top_k", experts.top_k).set("moe_ffn", experts.width);
        self.set("shared_experts", experts.shared_width.div_ceil(experts.width.max(1))).set("dense_layers", dense);
        self.set("expert_groups", experts.router_groups.max(1))
    }

    /// Adds the facts of a machine.
    pub fn add_hardware(&mut self, hardware: &Hardware) -> &mut Facts {
        self.set("hardware", hardware.name.as_str()).set("gpus_per_node", hardware.gpus_per_node as u64);
        self.set("architecture", architecture(&hardware.name))
    }
}

/// Returns a hybrid pattern with bars between stages of `layers`.
fn barred(pattern: &str, layers: &[usize]) -> String {
    let (main, predictions) = pattern.split_at(pattern.find('/').unwrap_or(pattern.len()));
    let mut letters = main.chars().filter(|letter| *letter != '|');
    let stages = layers.iter().map(|&count| letters.by_ref().take(count).collect::<String>());
    let stages = stages.collect::<Vec<_>>().join("|");
    if main.is_empty() { String::new() } else { stages + predictions }
}

/// Returns the generation of a chip by its name.
fn architecture(name: &str) -> &'static str {
    const BY: [(&str, &str); 13] = [
        ("a100", "ampere"),
        ("a800", "ampere"),
        ("l40", "ada"),
        ("rtx-4090", "ada"),
        ("h100", "hopper"),
        ("h200", "hopper"),
        ("h800", "hopper"),
        ("h20", "hopper"),
        ("b200", "blackwell"),
        ("b300", "blackwell"),
        ("mi300", "cdna3"),
        ("mi325", "cdna3"),
        ("mi355", "cdna4"),
    ];
    BY.iter().find(|(part, _)| name.contains(part)).map_or("", |(_, architecture)| architecture)
}

/// Returns how frameworks call the order of stages on devices, or the placement's own name.
fn rank_order(placement: &Placement) -> &str {
    let (p, stages) = (placement.devices(), placement.stages());
    let is =
        |device: fn(u32, u32) -> u32| (0..stages).all(|stage| placement.device_of_stage(stage, 0) == device(stage, p));
    match placement.directions() {
        1 if is(|stage, p| stage % p) => "loop",
        1 if stages == 2 * p && is(|stage, p| stage.min(2 * p - 1 - stage)) => "v",
        _ => placement.name(),
    }
}

/// Returns the micro-batches per group of an interleaved schedule: those that device 0 forwards through its first chunk before its second.
fn group(schedule: &Schedule) -> u32 {
    let stages = schedule.placement.stages_of(0).next().unwrap_or(0);
    let forwards = schedule.program(0).iter().filter(|op| op.kind() == Kind::F);
    let first = forwards.take_while(|op| op.stage() == stages).count();
    u32::try_from(first).unwrap_or(u32::MAX).clamp(1, schedule.microbatches.max(1))
}

/// Returns the built-in schedule that has the same ops on every device, if it is one that frameworks write as a loop: warm-up forwards, backwards
/// and forwards in turn, and the remaining backwards.
fn like(schedule: &Schedule) -> Option<&'static str> {
    let placement = &schedule.placement;
    let (p, v, m, n) = (placement.devices(), placement.chunks(), schedule.microbatches, group(schedule));
    let is_loop =
        placement.directions() == 1 && (0..placement.stages()).all(|s| placement.device_of_stage(s, 0) == s % p);
    if !is_loop || schedule.splits_backward() || schedule.has_pairs() || schedule.is_beyond_microbatches() {
        return None;
    }
    // the forwards of a device in order, groups of micro-batches through each chunk; backwards go through the chunks in reverse
    let turn = |r: u32, backward: bool| -> Vec<(u32, u32)> {
        let groups = (0..m).step_by(n as usize).map(|first| first..(first + n).min(m));
        let chunk = |c: u32| if backward { v - 1 - c } else { c };
        groups.flat_map(|group| (0..v).flat_map(move |c| group.clone().map(move |i| (chunk(c) * p + r, i)))).collect()
    };
    let is = |warmup: &dyn Fn(u32) -> u32| {
        (0..p).all(|r| {
            let (forwards, backwards) = (turn(r, false), turn(r, true));
            let warmup = (warmup(r) as usize).min(forwards.len());
            let ops = |kind: Kind, units: &[(u32, u32)]| units.iter().map(|unit| (kind, *unit)).collect::<Vec<_>>();
            let left = forwards.len() - warmup;
            let steady = forwards[warmup..].iter().zip(&backwards).flat_map(|(f, b)| [(Kind::F, *f), (Kind::B, *b)]);
            let all = [ops(Kind::F, &forwards[..warmup]), steady.collect(), ops(Kind::B, &backwards[left..])].concat();
            all.into_iter().eq(schedule.program(r).iter().map(|op| (op.kind(), (op.stage(), op.microbatch()))))
        })
    };
    match v {
        1 if is(&|r| p - 1 - r) => Some("1f1b"),
        1 => is(&|_| m).then_some("gpipe"),
        _ => is(&|r| (v - 1) * n + 2 * (p - 1 - r)).then_some("interleaved-1f1b"),
    }
}
