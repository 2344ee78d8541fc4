//! A plan as options of training software, and as a command of this program.

use super::answer::Plan;
use super::reason::PlanError;
use pipesim_cost::analytic::default_layers;
use pipesim_models::layout::{ParallelConfig, Precision, Recompute, Zero};
use pipesim_models::model_spec::transformer::Config;
use pipesim_schedule::sanitize::shell_quoted;
use serde_json::{Value, json};

/// Programs that a plan can be written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// Arguments of Megatron-LM's `pretrain_gpt.py` (`megatron/training/arguments.py`).
    Megatron,
    /// Overrides of Megatron-Bridge's recipes (`megatron.bridge.training.config`).
    MegatronBridge,
    /// TOML of torchtitan (`torchtitan/config/job_config.py`).
    Torchtitan,
    /// JSON of DeepSpeed.
    DeepSpeed,
    /// The command of this program that opens the plan's timeline.
    Pipesim,
}

impl Target {
    /// All targets.
    pub const ALL: [Target; 5] =
        [Target::Megatron, Target::MegatronBridge, Target::Torchtitan, Target::DeepSpeed, Target::Pipesim];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Target::Megatron => "megatron",
            Target::MegatronBridge => "megatron-bridge",
            Target::Torchtitan => "torchtitan",
            Target::DeepSpeed => "deepspeed",
            Target::Pipesim => "pipesim",
        }
    }

    /// Returns the default target for training software.
    pub fn of_stack(stack: &str) -> Target {
        match stack {
            "torchtitan" | "fsdp" | "automodel" => Target::Torchtitan,
            "megatron-bridge" => Target::MegatronBridge,
            "megatron-deepspeed" | "megatron-deepspeed-blocking" => Target::DeepSpeed,
            _ => Target::Megatron,
        }
    }
}

/// Names from the command line.
#[derive(Clone, Debug, Default)]
pub struct Names {
    pub model: String,
    pub hardware: String,
    pub stack: String,
    pub memory_cap: Option<String>,
}

/// Returns the text to paste.
///
/// # Errors
/// The program lacks a feature of the plan.
pub fn flags(plan: &Plan, model: &Config, target: Target, names: &Names) -> Result<String, PlanError> {
    let flags = Flags { plan, layout: &plan.layout, model };
    match target {
        Target::Megatron => flags.megatron(),
        Target::MegatronBridge => flags.bridge(),
        Target::Torchtitan => flags.torchtitan(),
        Target::DeepSpeed => flags.deepspeed(),
        Target::Pipesim => Ok(flags.pipesim(names)),
    }
}

struct Flags<'a> {
    plan: &'a Plan,
    layout: &'a ParallelConfig,
    model: &'a Config,
}

fn missing(what: &str, target: &str) -> PlanError {
    PlanError::Refused(format!("{target} has no {what}"))
}

impl Flags<'_> {
    /// Returns the layers of each stage.
    fn split(&self) -> Vec<usize> {
        let usual = || default_layers(self.model, self.layout.stages() as usize);
        self.layout.layers.clone().unwrap_or_else(usual)
    }

    /// Returns whether numbers of stages describe the split.
    fn is_even(&self) -> bool {
        self.split().windows(2).all(|pair| pair[0] == pair[1]) && self.model.prediction_layers == 0
    }

    fn check_megatron(&self, target: &str) -> Result<(), PlanError> {
        let known = ["1f1b", "interleaved-1f1b"].contains(&self.plan.schedule.as_str());
        if self.layout.pp > 1 && !known {
            return Err(missing(&self.plan.schedule, target));
        }
        if self.layout.zero > Zero::Optimizer {
            return Err(missing("ZeRO above 1 with these options", target));
        }
        Ok(())
    }

    /// Returns Megatron-Core's settings: name, and value if it has one.
    fn settings(&self) -> Vec<(&'static str, Option<String>)> {
        let l = self.layout;
        let mut all = vec![
            ("tensor_model_parallel_size", Some(l.tp.to_string())),
            ("pipeline_model_parallel_size", Some(l.pp.to_string())),
        ];
        let mut add = |is_there: bool, name: &'static str, value: Option<String>| {
            if is_there {
                all.push((name, value));
            }
        };
        add(l.cp > 1, "context_parallel_size", Some(l.cp.to_string()));
        add(l.ep > 1, "expert_model_parallel_size", Some(l.ep.to_string()));
        // whose default is the tensor-parallel size
        add(
            self.model.experts.is_some() && l.tp.max(l.etp) > 1,
            "expert_tensor_parallel_size",
            Some(l.etp.to_string()),
        );
        add(l.sequence_parallel, "sequence_parallel", None);
        let is_even = self.is_even();
        add(l.pp > 1 && !is_even, "pipeline_model_parallel_layout", Some(self.plan.estimate.stage_layout.clone()));
        add(l.chunks > 1 && is_even, "virtual_pipeline_model_parallel_size", Some(l.chunks.to_string()));
        match l.recompute {
            Recompute::None => {}
            Recompute::Selective => add(true, "recompute_granularity", Some("selective".to_string())),
            Recompute::Parts(_) => {
                add(true, "recompute_granularity", Some("selective".to_string()));
                add(true, "recompute_modules", Some(l.recompute.to_string()));
            }
            Recompute::Full => {
                add(true, "recompute_granularity", Some("full".to_string()));
                add(true, "recompute_method", Some("uniform".to_string()));
                add(true, "recompute_num_layers", Some("1".to_string()));
            }
        }
        all
    }

    fn megatron(&self) -> Result<String, PlanError> {
        self.check_megatron("Megatron-LM")?;
        let l = self.layout;
        let mut words = Vec::new();
        for (name, value) in self.settings() {
            match (name, value) {
                ("virtual_pipeline_model_parallel_size", _) => {
                    let each = self.model.layers / l.stages() as usize;
                    words.push(format!("--num-layers-per-virtual-pipeline-stage {each}"));
                }
                ("recompute_modules", Some(parts)) => {
                    words.push(format!("--recompute-modules {}", parts.replace(',', " ")))
                }
                (name, None) => words.push(format!("--{}", name.replace('_', "-"))),
                (name, Some(value)) => words.push(format!("--{} {}", name.replace('_', "-"), shell_quoted(&value))),
            }
        }
        words.push(format!(
            "--micro-batch-size {} --global-batch-size {} --seq-length {}",
            l.micro_batch_size,
            l.batch(),
            l.sequence
        ));
        if l.zero == Zero::Optimizer {
            words.push("--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather".to_string());
        }
        if l.sequence_parallel && l.stack == "megatron-core" {
            words.push("--tp-comm-overlap".to_string());
        }
        words.push(
            match l.precision {
                Precision::Bf16 => "--bf16",
                Precision::Fp16 => "--fp16",
                Precision::Fp32 => return Ok(words.join(" ")),
                Precision::Fp8 => "--bf16 --fp8-format hybrid",
                Precision::Mxfp8 => "--bf16 --fp8-format e4m3 --fp8-recipe mxfp8",
                Precision::Nvfp4 => "--bf16 --fp4-format e2m1 --fp4-recipe nvfp4",
            }
            .to_string(),
        );
        Ok(words.join(" "))
    }

    fn bridge(&self) -> Result<String, PlanError> {
        self.check_megatron("Megatron-Bridge")?;
        let l = self.layout;
        let mut words: Vec<String> = self
            .settings()
            .into_iter()
            .map(|(name, value)| match (name, value) {
                (name, None) => format!("model.{name}=true"),
                ("recompute_modules", Some(parts)) => format!("model.{name}={}", shell_quoted(&format!("[{parts}]"))),
                (name, Some(value)) => format!("model.{name}={}", shell_quoted(&value)),
            })
            .collect();
        words.push(format!("model.seq_length={0} dataset.sequence_length={0}", l.sequence));
        words.push(format!("train.micro_batch_size={} train.global_batch_size={}", l.micro_batch_size, l.batch()));
        if l.zero == Zero::Optimizer {
            words.push(
                "ddp.use_distributed_optimizer=true ddp.overlap_grad_reduce=true ddp.overlap_param_gather=true"
                    .to_string(),
            );
        }
        Ok(words.join(" "))
    }

    fn torchtitan(&self) -> Result<String, PlanError> {
        let l = self.layout;
        let schedule = match self.plan.schedule.as_str() {
            _ if l.pp == 1 => None,
            "gpipe" => Some("GPipe"),
            "1f1b" => Some("1F1B"),
            "interleaved-1f1b" => Some("Interleaved1F1B"),
            "looped-bfs" => Some("LoopedBFS"),
            "interleaved-zb" => Some("InterleavedZeroBubble"),
            "zb-v" => Some("ZBVZeroBubble"),
            "dualpipe-v" => Some("DualPipeV"),
            other => return Err(missing(other, "torchtitan")),
        };
        let (replicas, shards) = if l.zero == Zero::None { (l.dp, 1) } else { (1, l.dp) };
        let of_pipeline = if l.pp > 1 { l.micro_batch_size * l.micro } else { l.micro_batch_size };
        let mut lines = vec![
            "[training]".to_string(),
            format!("local_batch_size = {of_pipeline}"),
            format!("global_batch_size = {}", l.batch()),
            format!("seq_len = {}", l.sequence),
            String::new(),
            "[parallelism]".to_string(),
            format!("data_parallel_replicate_degree = {replicas}"),
            format!("data_parallel_shard_degree = {shards}"),
            format!("tensor_parallel_degree = {}", l.tp),
            format!("context_parallel_degree = {}", l.cp),
            format!("pipeline_parallel_degree = {}", l.pp),
        ];
        if l.ep > 1 {
            lines.push(format!("expert_parallel_degree = {}", l.ep));
            lines.push(format!("expert_tensor_parallel_degree = {}", l.etp));
        }
        if shards > 1 {
            let reshard = if l.zero == Zero::Weights { "always" } else { "never" };
            lines.push(format!("fsdp_reshard_after_forward = \"{reshard}\""));
        }
        if let Some(schedule) = schedule {
            lines.push(format!("pipeline_parallel_schedule = \"{schedule}\""));
            lines.push(format!("pipeline_parallel_microbatch_size = {}", l.micro_batch_size));
            if self.is_even() {
                lines.push(format!("pipeline_parallel_layers_per_stage = {}", self.model.layers / l.stages() as usize));
                lines.push("pipeline_parallel_first_stage_less_layers = 0".to_string());
                lines.push("pipeline_parallel_last_stage_less_layers = 0".to_string());
            } else {
                lines.push(format!("module_fqns_per_model_part = {}", self.modules()));
            }
        }
        if matches!(l.recompute, Recompute::Parts(_)) {
            return Err(missing(&format!("recompute={}", l.recompute), "torchtitan"));
        }
        if self.model.experts.is_some() && l.ep == 1 && l.etp != l.tp {
            return Err(missing(&format!("experts on {} of tp {} ranks with ep 1", l.etp, l.tp), "torchtitan"));
        }
        let mode = l.recompute.to_string();
        lines.extend([String::new(), "[activation_checkpoint]".to_string(), format!("mode = \"{mode}\"")]);
        Ok(lines.join("\n"))
    }

    /// Returns torchtitan's names of the modules of each stage.
    fn modules(&self) -> String {
        let split = self.split();
        let (mut first, last) = (0, split.len() - 1);
        let stage = |(number, count): (usize, &usize)| {
            let layers = (first..first + count).map(|layer| format!("\"layers.{layer}\""));
            let mut names: Vec<String> = if number == 0 { vec!["\"tok_embeddings\"".to_string()] } else { Vec::new() };
            names.extend(layers);
            first += count;
            if number == last {
                names.extend(["\"norm\"", "\"output\""].map(str::to_string));
            }
            format!("[{}]", names.join(", "))
        };
        format!("[{}]", split.iter().enumerate().map(stage).collect::<Vec<_>>().join(", "))
    }

    fn deepspeed(&self) -> Result<String, PlanError> {
        let l = self.layout;
        if l.cp > 1 {
            return Err(missing("context parallelism", "DeepSpeed's JSON"));
        }
        if l.ep > 1 {
            return Err(missing("expert parallelism", "DeepSpeed's JSON"));
        }
        if matches!(l.recompute, Recompute::Parts(_)) {
            return Err(missing(&format!("recompute={}", l.recompute), "DeepSpeed's JSON"));
        }
        if l.pp > 1 && self.plan.schedule != "1f1b" {
            return Err(missing(&self.plan.schedule, "DeepSpeed"));
        }
        let mut config = json!({
            "train_batch_size": l.batch(),
            "train_micro_batch_size_per_gpu": l.micro_batch_size,
            "gradient_accumulation_steps": l.micro,
            "zero_optimization": {"stage": l.zero as u8},
        });
        let mut set = |key: &str, value: Value| config[key] = value;
        match l.precision {
            Precision::Bf16 => set("bf16", json!({"enabled": true})),
            Precision::Fp16 => set("fp16", json!({"enabled": true})),
            Precision::Fp32 => {}
            other => return Err(missing(&format!("precision {other}"), "DeepSpeed's JSON")),
        }
        if l.tp > 1 {
            set("tensor_parallel", json!({"autotp_size": l.tp}));
        }
        if l.pp > 1 {
            let each = u8::from(l.recompute == Recompute::Full);
            set("pipeline", json!({"stages": l.pp, "activation_checkpoint_interval": each}));
        }
        serde_json::to_string_pretty(&config).map_err(PlanError::refused)
    }

    fn pipesim(&self, names: &Names) -> String {
        let l = self.layout;
        let mut words = vec![
            "pipesim predict".to_string(),
            format!("--model {} --hardware {}", shell_quoted(&names.model), shell_quoted(&names.hardware)),
            format!("--stages {} --tp {} --dp {}", l.pp, l.tp, l.dp),
        ];
        let mut add = |is_there: bool, text: String| words.extend(is_there.then_some(text));
        add(l.cp > 1, format!("--cp {}", l.cp));
        add(l.ep > 1, format!("--ep {}", l.ep));
        add(self.model.experts.is_some() && (l.ep > 1 || l.tp > 1), format!("--etp {}", l.etp));
        add(true, format!("--batch {} --micro-batch-size {} --seq {}", l.batch(), l.micro_batch_size, l.sequence));
        add(l.precision != Precision::Bf16, format!("--precision {}", l.precision));
        if let Some(attention) = l.attention {
            add(true, format!("--attention {attention}"));
        }
        add(l.recompute != Recompute::None, format!("--recompute {}", l.recompute));
        add(l.zero != Zero::None, format!("--zero {}", l.zero));
        add(l.sequence_parallel, "--sequence-parallel".to_string());
        add(names.stack != pipesim_models::hardware::STACKS[0], format!("--stack {}", shell_quoted(&names.stack)));
        if let Some(layers) = &l.layers {
            let list = layers.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            add(true, format!("--layers {list}"));
        }
        if let Some(cap) = &names.memory_cap {
            add(true, format!("--memory-cap {cap}"));
        }
        add(true, format!("-s {}", shell_quoted(&self.plan.schedule)));
        add(self.plan.names_chunks, format!("--chunks {}", l.chunks));
        words.join(" ")
    }
}
