//! Options that say what computes and what moves messages, and whether this machine can.

use super::Failure;
use super::choice::one_of;
use super::numbers::whole;
use super::options::DetailOptions;
use crate::delivery::Delivery;
use crate::exec::link::{LINKS, LinkKind, Refusal, Setting};
use crate::exec::{Gpus, LACK};
use crate::experiment::{Backend, Error};
use crate::ranks::Ranks;
use clap::builder::TypedValueParser;
use clap::{Args, ValueEnum};
#[cfg(feature = "cuda")]
use std::{sync::OnceLock, time::Duration};

/// How long NVIDIA's libraries may take to open.
#[cfg(feature = "cuda")]
const OPENING: Duration = Duration::from_secs(10);

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeviceKind {
    /// CUDA where there is a usable GPU for every device (or --slices), else the CPU.
    Auto,
    /// A thread a device.
    Cpu,
    /// Each op lasts as long as --costs or --profile says; for trying the executor at many devices.
    Timed,
    /// NVIDIA GPUs: a GPU a device, or --slices devices a GPU.
    Cuda,
}

/// What moves messages; none for the best that is usable here.
type LinkChoice = Option<&'static LinkKind>;

fn link_choice() -> impl TypedValueParser<Value = LinkChoice> {
    let named = LINKS.iter().map(|link| (link.name, link.about, Some(link)));
    one_of([("auto", "The best that is usable here", None)].into_iter().chain(named))
}

/// Type of activations on GPUs: whether it is bfloat16.
const PRECISIONS: [(&str, &str, bool); 2] = [
    ("float32|f32|fp32", "Everything in float32", false),
    ("bfloat16|bf16", "Activations in bfloat16, parameters, gradients and moments in float32", true),
];

/// What computes and what moves messages.
#[derive(Args, Clone, Debug)]
pub struct DeviceOptions {
    /// What computes
    #[arg(long, value_enum, default_value_t = DeviceKind::Auto)]
    pub device: DeviceKind,
    /// What moves messages; given several times, the same schedules run under each
    #[arg(long, value_parser = link_choice(), default_values = ["auto"])]
    pub link: Vec<LinkChoice>,
    /// Devices on each GPU, each with its share of the multiprocessors [default: one, the whole GPU]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..256))]
    pub slices: Option<u32>,
    /// Type of activations on GPUs
    #[arg(long = "precision", value_name = "PRECISION", action = clap::ArgAction::Set, value_parser = one_of(PRECISIONS), default_value = "float32")]
    pub bfloat16: bool,
}

/// What was decided.
#[derive(Clone, Copy)]
pub enum Chosen {
    /// CPU threads.
    Cpu,
    /// Clocks.
    Timed,
    /// GPUs.
    Cuda,
}

impl Chosen {
    /// Whether devices are GPUs.
    pub fn is_cuda(self) -> bool {
        matches!(self, Chosen::Cuda)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        let kind = if refusal.is_lack { Failure::Environment } else { Failure::Usage };
        kind(refusal.why)
    }
}

/// Whether NVIDIA's libraries may be opened in this process; a child has tried them, once.
#[cfg(feature = "cuda")]
fn may_open() -> Result<(), String> {
    static MAY_OPEN: OnceLock<Result<(), String>> = OnceLock::new();
    MAY_OPEN.get_or_init(|| crate::doctor::may_open_libraries(OPENING)).clone()
}

/// There are none in this build.
#[cfg(not(feature = "cuda"))]
fn may_open() -> Result<(), String> {
    Ok(())
}

impl DeviceOptions {
    /// What computes `devices` devices: as asked for, or the best that is usable.
    pub fn choose(&self, ranks: &Ranks, devices: u32, details: DetailOptions) -> Result<Chosen, Failure> {
        let asked = self.slices.map(|_| "--slices").or(self.bfloat16.then_some("--precision"));
        if let (Some(option), DeviceKind::Cpu | DeviceKind::Timed) = (asked, self.device) {
            return Err(Failure::Usage(format!("{option} is for GPUs; leave it out, or use --device cuda")));
        }
        if ranks.size() > 1 && self.slices.is_some_and(|slices| slices > 1) {
            details
                .remarks
                .remark("ranks that share a GPU take turns on the whole of it: losses are right, times mean little");
        }
        match self.device {
            DeviceKind::Cpu => Ok(Chosen::Cpu),
            DeviceKind::Timed => Ok(Chosen::Timed),
            DeviceKind::Cuda => self.gpus(ranks, devices).map(|_| Chosen::Cuda).map_err(|why| {
                let more = "\npipesim doctor says what else is there; --device cpu needs nothing";
                Failure::Environment(why + LACK.map_or(more, |_| ""))
            }),
            DeviceKind::Auto => {
                let found = self.gpus(ranks, devices);
                // All ranks must choose alike.
                let all =
                    ranks.exchange(vec![u8::from(found.is_ok())]).map_err(|lost| Failure::Hang(lost.to_string()))?;
                match found {
                    Ok(_) if all.iter().all(|able| *able == [1]) => {
                        details.remarks.remark(&match self.slices {
                            None => "device: cuda, as there is a usable GPU for every device".to_string(),
                            Some(slices) => format!("device: cuda, {slices} devices a GPU"),
                        });
                        Ok(Chosen::Cuda)
                    }
                    Ok(_) => Ok(Chosen::Cpu),
                    Err(why) if asked.is_some() => Err(Failure::Environment(format!(
                        "{} is for GPUs, which cannot be used here: {why}",
                        asked.unwrap_or_default()
                    ))),
                    Err(why) => {
                        // What must not be opened here is not opened to see whether it is there, either.
                        if details.verbose > 0 || may_open().is_err() || Gpus::are_likely() {
                            let why = why.split(';').next().unwrap_or_default();
                            details.remarks.remark(&format!("device: cpu, a thread a device (cuda: {why})"));
                        }
                        Ok(Chosen::Cpu)
                    }
                }
            }
        }
    }

    /// Whether nothing but GPUs was asked for that a CPU could not do, so that it may stand in for them.
    pub fn may_fall_back(&self) -> bool {
        self.device == DeviceKind::Auto && self.slices.is_none() && !self.bfloat16
    }

    fn gpus(&self, ranks: &Ranks, devices: u32) -> Result<Gpus, String> {
        may_open()?;
        Gpus::open(ranks, devices, self.slices, self.bfloat16).map_err(|error| format!("{error:#}"))
    }

    /// The links, the best one in the place of `auto`, each once.
    pub fn links(&self, chosen: Chosen, ranks: &Ranks, devices: u32) -> Result<Vec<&'static LinkKind>, Failure> {
        let setting = Setting { gpus: chosen.is_cuda(), ranks, devices, slices: self.slices };
        let mut links: Vec<&LinkKind> = Vec::new();
        for choice in &self.link {
            let link = match choice {
                None => LinkKind::best(&setting).map_err(|lost| Failure::Hang(lost.to_string()))?,
                Some(link) => link,
            };
            link.check(&setting)?;
            if links.iter().all(|other| other.name != link.name) {
                links.push(link);
            }
        }
        Ok(links)
    }

    /// What sessions are made of, where the link delivers like this.
    pub fn backend(
        &self,
        chosen: Chosen,
        (link, delivery): (&'static LinkKind, Delivery),
        ranks: &Ranks,
        devices: u32,
    ) -> Result<Backend, Error> {
        if !chosen.is_cuda() {
            return Ok(Backend::Cpu);
        }
        let gpus = self.gpus(ranks, devices).map_err(Error::Environment)?;
        Ok(Backend::Cuda { gpus, link, delivery })
    }

    /// What a command measures on that knows one link and no clocks.
    pub fn sole_backend(
        &self,
        ranks: &Ranks,
        devices: u32,
        details: DetailOptions,
    ) -> Result<(Backend, &'static LinkKind), Failure> {
        let chosen = self.choose(ranks, devices, details)?;
        let links = self.links(chosen, ranks, devices)?;
        let &[link] = links.as_slice() else {
            return Err(Failure::Usage(format!(
                "expected one --link here, found {}; leave the others out",
                links.len()
            )));
        };
        if matches!(chosen, Chosen::Timed) {
            return Err(Failure::Usage(
                "timed devices last what they are told: there is nothing to measure; use --device cpu or cuda"
                    .to_string(),
            ));
        }
        let delivery = link.delivery(chosen.is_cuda(), ranks, Delivery::OneSided)?;
        Ok((self.backend(chosen, (link, delivery), ranks, devices)?, link))
    }
}
