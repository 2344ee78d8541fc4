//! Options that choose devices and links, and whether this machine has them.

use super::values::{one_of, whole};
use crate::cli::Failure;
use crate::cli::terminal::progress::DetailOptions;
use clap::builder::TypedValueParser;
use clap::{Args, ValueEnum};
use pipesim_exec::link::{LINKS, LinkKind, Refusal, Setting, Transport};
use pipesim_exec::ranks::Ranks;
use pipesim_exec::{Gpus, PRODUCTS};
use pipesim_gpu::{algorithms, attention, library};
use pipesim_measure::experiment::{Backend, Devices, Error};
use pipesim_schedule::delivery::Delivery;
use pipesim_schedule::mesh::Mesh;
use std::{sync::OnceLock, time::Duration};

/// Time limit in seconds for opening NVIDIA's libraries, since hundreds of megabytes may have to be read from a cold disk. The
/// variable replaces it.
const OPENING_S: (&str, u64) = ("PIPESIM_OPENING_LIMIT", 60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeviceKind {
    /// cuda if every device (or --gpu-slices devices) can have a usable GPU, else cpu
    Auto,
    /// One thread per device
    Cpu,
    /// Ops compute nothing and only wait for their time in --costs or --profile; runs the real executor with many devices
    Timed,
    /// NVIDIA GPUs, one per device or --gpu-slices devices per GPU
    Cuda,
}

/// A link, or none for the best usable one.
type LinkChoice = Option<&'static LinkKind>;

fn link_choice() -> impl TypedValueParser<Value = LinkChoice> {
    let named = LINKS.iter().map(|link| (link.name, link.about, Some(link)));
    one_of([("auto", "The best link usable on this machine", None)].into_iter().chain(named))
}

/// Precision of activations on GPUs: whether it is bfloat16.
const PRECISIONS: [(&str, &str, bool); 2] = [
    ("fp32|float32|f32", "Everything in float32", false),
    ("bf16|bfloat16", "Activations in bfloat16; parameters, gradients and moments in float32", true),
];

/// Who computes attention on GPUs: whether it is cuDNN.
const ATTENTIONS: [(&str, &str, bool); 2] = [
    ("own", "Kernels of pipesim", false),
    ("cudnn", "cuDNN's fused attention, for bfloat16 and whole sequences", true),
];

/// Said once per run on GPUs without `--precision bf16`. float32 stays the default: losses then match a CPU's to 1e-4.
const IN_FLOAT32: &str =
    "note: activations are float32, whose products run without tensor cores; --precision bf16 is several times faster";

#[derive(Args, Clone, Debug)]
pub struct DeviceOptions {
    /// Device kind
    #[arg(long, value_enum, default_value_t = DeviceKind::Auto)]
    pub device: DeviceKind,
    /// Link that moves messages; repeatable: the schedules run over each
    #[arg(long, value_parser = link_choice(), default_values = ["auto"])]
    pub link: Vec<LinkChoice>,
    /// Devices per GPU, each with its own share of the SMs [default: 1]
    #[arg(long = "gpu-slices", alias = "slices", value_name = "N", value_parser = whole::<u32>(1..256))]
    pub slices: Option<u32>,
    /// Precision of activations on GPUs
    #[arg(long = "precision", value_name = "PRECISION", action = clap::ArgAction::Set, value_parser = one_of(PRECISIONS), default_value = "fp32")]
    pub bfloat16: bool,
    /// Algorithms of matrix products on GPUs: cuBLASLt's first proposals (first), the fastest of up to 8, timed before the first step (timed), or those that a run's JSON or report has recorded
    #[arg(long, value_name = "first|timed|FILE", default_value = FIRST)]
    pub products: String,
    /// Launch the kernels of ops as CUDA graphs, captured once and replayed, which takes fewer launches. Not the same as --cuda-graph of predict: that says what Megatron captures
    #[arg(long, value_name = "on|off", action = clap::ArgAction::Set, value_parser = one_of(GRAPHS_USED), default_value = "off")]
    pub cuda_graphs: bool,
    /// Library that computes attention on GPUs
    #[arg(long = "attention", value_name = "LIBRARY", action = clap::ArgAction::Set, value_parser = one_of(ATTENTIONS), default_value = "own")]
    pub cudnn: bool,
}

/// Values of `--cuda-graphs`.
const GRAPHS_USED: [(&str, &str, bool); 2] = [
    ("off", "Launch every kernel separately", false),
    ("on", "Launch what an op enqueues between two events at once", true),
];

/// Values of `--products`.
const FIRST: &str = "first";
const TIMED: &str = "timed";

#[derive(Clone, Copy)]
pub enum Chosen {
    Cpu,
    Timed,
    Cuda,
}

impl Chosen {
    pub fn is_cuda(self) -> bool {
        matches!(self, Chosen::Cuda)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        let kind = if refusal.is_unavailable { Failure::Environment } else { Failure::Usage };
        kind(refusal.why)
    }
}

/// Whether NVIDIA's libraries may be opened in this process, because a child process opened them without a crash.
fn may_open() -> Result<(), String> {
    static MAY_OPEN: OnceLock<Result<(), String>> = OnceLock::new();
    let open =
        || pipesim_exec::doctor::may_open_libraries(opening_limit()?, OPENING_S.0).map_err(|why| why.to_string());
    MAY_OPEN.get_or_init(open).clone()
}

fn opening_limit() -> Result<Duration, String> {
    let (name, usual) = OPENING_S;
    let Some(given) = std::env::var_os(name) else { return Ok(Duration::from_secs(usual)) };
    let seconds = given.to_str().and_then(|text| text.parse().ok()).filter(|seconds| (1..=3600).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| {
        format!("expected whole seconds from 1 to 3600 in {name}, found {}: correct or unset it", given.display())
    })
}

/// Returns the algorithms that a run's JSON or a report has recorded.
fn recorded(file: &str) -> Result<String, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("expected first, timed or a readable file for --products, found {file}: {error}"))?;
    let json: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| format!("--products: expected JSON in {file}, found: {error}"))?;
    let found = json.get(PRODUCTS).or_else(|| json.pointer("/provenance/products")).and_then(|record| record.as_str());
    found.map(str::to_string).ok_or_else(|| {
        format!("--products: expected a key products in {file}, found none: record a run with --products timed --format json")
    })
}

impl DeviceOptions {
    /// Returns the options for the workers of `mesh`. Timed devices support one worker per pipeline device.
    pub fn for_mesh(&self, mesh: Mesh) -> Result<DeviceOptions, Failure> {
        let refuse =
            |what: &str| Err(Failure::Usage(format!("{what}, found {mesh}; leave these out, or use --device cpu")));
        match self.device {
            DeviceKind::Timed if mesh != Mesh::default() => refuse("timed devices have one worker per stage"),
            _ => Ok(self.clone()),
        }
    }

    /// Returns the device kind asked for, or the best usable one for `devices` devices.
    pub fn choose(&self, ranks: &Ranks, devices: u32, details: DetailOptions) -> Result<Chosen, Failure> {
        let asked = self.slices.map(|_| "--gpu-slices").or(self.bfloat16.then_some("--precision"));
        let asked = asked.or((self.products != FIRST).then_some("--products"));
        let asked = asked.or(self.cuda_graphs.then_some("--cuda-graphs"));
        let asked = asked.or(self.cudnn.then_some("--attention"));
        if let (Some(option), DeviceKind::Cpu | DeviceKind::Timed) = (asked, self.device) {
            return Err(Failure::Usage(format!("{option} is for GPUs; leave it out, or use --device cuda")));
        }
        if ranks.size() > 1 && self.slices.is_some_and(|slices| slices > 1) {
            details
                .remarks
                .remark("note: ranks that share a GPU take turns on it: losses are right, times mean little");
        }
        if self.cudnn && !self.bfloat16 {
            return Err(Failure::Usage(
                "expected bfloat16 for cuDNN's attention, found float32: add --precision bf16, or leave --attention cudnn out"
                    .to_string(),
            ));
        }
        self.choose_algorithms()?;
        let chosen = self.chosen(ranks, devices, details, asked)?;
        if chosen.is_cuda() && !self.bfloat16 {
            details.remarks.remark(IN_FLOAT32);
        }
        Ok(chosen)
    }

    fn choose_algorithms(&self) -> Result<(), Failure> {
        let record = match self.products.as_str() {
            FIRST => return Ok(()),
            TIMED => None,
            file => Some(recorded(file).map_err(Failure::Usage)?),
        };
        algorithms::choose_by(record.as_deref()).map_err(|error| Failure::Usage(format!("--products: {error}")))
    }

    fn chosen(
        &self,
        ranks: &Ranks,
        devices: u32,
        details: DetailOptions,
        asked: Option<&str>,
    ) -> Result<Chosen, Failure> {
        match self.device {
            DeviceKind::Cpu => Ok(Chosen::Cpu),
            DeviceKind::Timed => Ok(Chosen::Timed),
            DeviceKind::Cuda => self.gpus(ranks, devices).map(|_| Chosen::Cuda).map_err(|why| {
                Failure::Environment(why + "\nrun pipesim doctor to see what works here; --device cpu always does")
            }),
            DeviceKind::Auto => {
                let found = self.gpus(ranks, devices);
                // All ranks must choose alike.
                let all =
                    ranks.exchange(vec![u8::from(found.is_ok())]).map_err(|lost| Failure::Hang(lost.to_string()))?;
                match found {
                    Ok(_) if all.iter().all(|able| *able == [1]) => {
                        details.remarks.remark(&match self.slices {
                            None => "device: cuda, one GPU per device".to_string(),
                            Some(slices) => format!("device: cuda, {slices} devices per GPU"),
                        });
                        Ok(Chosen::Cuda)
                    }
                    Ok(_) => Ok(Chosen::Cpu),
                    Err(why) if asked.is_some() => Err(Failure::Environment(format!(
                        "{} is for GPUs, which cannot be used here: {why}",
                        asked.unwrap_or_default()
                    ))),
                    Err(why) => {
                        // Libraries that must not be opened cannot be searched for GPUs, either.
                        if details.verbose > 0 || may_open().is_err() || library::is_likely() {
                            let why = why.split(';').next().unwrap_or_default();
                            details.remarks.remark(&format!("device: cpu, one thread per device (cuda: {why})"));
                        }
                        Ok(Chosen::Cpu)
                    }
                }
            }
        }
    }

    /// Whether the CPU may replace GPUs: no option that needs them was given.
    pub fn may_fall_back(&self) -> bool {
        let is_plain =
            self.slices.is_none() && !self.bfloat16 && self.products == FIRST && !self.cuda_graphs && !self.cudnn;
        self.device == DeviceKind::Auto && is_plain
    }

    fn gpus(&self, ranks: &Ranks, devices: u32) -> Result<Gpus, String> {
        may_open()?;
        if self.cudnn {
            attention::take_cudnn().map_err(|error| error.to_string())?;
        }
        let gpus = Gpus::open(ranks, devices, self.slices, self.bfloat16).map_err(|error| format!("{error:#}"))?;
        Ok(gpus.with_graphs(self.cuda_graphs))
    }

    /// Returns the links without duplicates, with the best one for `auto`, each with its guarantees if `asked` is asked for.
    pub fn transports(
        &self,
        chosen: Chosen,
        ranks: &Ranks,
        devices: u32,
        asked: Delivery,
    ) -> Result<Vec<Transport>, Failure> {
        let setting = Setting { gpus: chosen.is_cuda(), ranks, devices, slices: self.slices };
        let mut transports: Vec<Transport> = Vec::new();
        for choice in &self.link {
            let link = match choice {
                None => LinkKind::best(&setting).map_err(|lost| Failure::Hang(lost.to_string()))?,
                Some(link) => link,
            };
            link.check(&setting)?;
            if transports.iter().all(|other| other.link.name != link.name) {
                transports.push(Transport { link, delivery: link.delivery(chosen.is_cuda(), ranks, asked)? });
            }
        }
        Ok(transports)
    }

    /// Returns the backend of sessions over `transport`.
    pub fn backend(&self, chosen: Chosen, transport: Transport, ranks: &Ranks, devices: u32) -> Result<Backend, Error> {
        let gpus = || self.gpus(ranks, devices).map_err(Error::Environment);
        let devices = if chosen.is_cuda() { Devices::Cuda(gpus()?) } else { Devices::Cpu };
        Ok(Backend { devices, transport })
    }

    /// Returns the backend of a command that measures over one link.
    pub fn sole_backend(&self, ranks: &Ranks, devices: u32, details: DetailOptions) -> Result<Backend, Failure> {
        let chosen = self.choose(ranks, devices, details)?;
        let transports = self.transports(chosen, ranks, devices, Delivery::OneSided)?;
        let &[transport] = transports.as_slice() else {
            return Err(Failure::Usage(format!(
                "expected one --link here, found {}; leave the others out",
                transports.len()
            )));
        };
        if matches!(chosen, Chosen::Timed) {
            return Err(Failure::Usage(
                "timed devices have given durations, so there is nothing to measure; use --device cpu or cuda"
                    .to_string(),
            ));
        }
        Ok(self.backend(chosen, transport, ranks, devices)?)
    }
}
