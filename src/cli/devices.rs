//! Options that say what computes and what moves messages, and whether this machine can.

use super::Failure;
use super::options::OutputOptions;
use crate::cuda::library::{self, CUBLASLT, NCCL, NVRTC, NVSHMEM};
use crate::cuda::{Driver, Precision};
use crate::delivery::{ChannelOptions, Delivery, QueueCount, Receives};
use crate::exec::gpu::{Kind, open};
use crate::experiment::Backend;
use crate::ranks::{HAS_MPI, Ranks};
use clap::{Args, ValueEnum};

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

/// What moves messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LinkKind {
    /// The best that is usable here.
    Auto,
    /// The hosts' shared memory, between threads or ranks of one machine.
    Local,
    /// Peer copies and events, between processes through shared handles (cuda).
    Copy,
    /// NVSHMEM puts with signal on a stream; a rank a device (cuda).
    Nvshmem,
    /// NCCL sends and receives, which meet (cuda).
    Nccl,
    /// MPI between machines, shared memory within; under mpirun.
    Mpi,
}

impl LinkKind {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            LinkKind::Auto => "auto",
            LinkKind::Local => "local",
            LinkKind::Copy => "copy",
            LinkKind::Nvshmem => "nvshmem",
            LinkKind::Nccl => "nccl",
            LinkKind::Mpi => "mpi",
        }
    }

    fn carrier(self, channel: ChannelOptions) -> Kind {
        match self {
            LinkKind::Nvshmem => Kind::Nvshmem,
            LinkKind::Nccl => Kind::Nccl(channel),
            LinkKind::Local | LinkKind::Mpi => Kind::Staged,
            LinkKind::Copy | LinkKind::Auto => Kind::Copy,
        }
    }
}

/// Type of activations on GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrecisionKind {
    /// Everything in float32.
    #[value(alias = "f32")]
    Float32,
    /// Activations in bfloat16, parameters, gradients and moments in float32.
    #[value(alias = "bf16")]
    Bfloat16,
}

/// What computes and what moves messages.
#[derive(Args, Clone, Debug)]
pub struct DeviceOptions {
    /// What computes
    #[arg(long, value_enum, default_value_t = DeviceKind::Auto)]
    pub device: DeviceKind,
    /// What moves messages; given several times, the same schedules run under each
    #[arg(long, value_enum, default_values_t = [LinkKind::Auto])]
    pub link: Vec<LinkKind>,
    /// Devices on each GPU, each with its share of the multiprocessors [default: one, the whole GPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..256))]
    pub slices: Option<u32>,
    /// Type of activations on GPUs
    #[arg(long, value_enum, default_value_t = PrecisionKind::Float32)]
    pub precision: PrecisionKind,
}

/// What was decided.
#[derive(Clone, Copy)]
pub enum Chosen {
    /// CPU threads.
    Cpu,
    /// Clocks.
    Timed,
    /// GPUs, by this driver.
    Cuda(&'static Driver),
}

impl DeviceOptions {
    /// What computes `devices` devices: as asked for, or the best that is usable.
    ///
    /// # Errors
    /// CUDA was asked for and is not usable here: what is missing, and how to get it.
    pub fn choose(&self, ranks: &Ranks, devices: u32, output: &OutputOptions) -> Result<Chosen, Failure> {
        let cuda = || -> Result<&'static Driver, String> {
            let driver = Driver::open().map_err(|unusable| unusable.to_string())?;
            library::open(&CUBLASLT).map_err(|missing| missing.to_string())?;
            if std::env::var_os("PIPESIM_KERNELS").is_none() {
                library::open(&NVRTC).map_err(|missing| missing.to_string())?;
            }
            open(ranks, devices, self.slices, driver).map_err(|error| format!("{error:#}"))?;
            Ok(driver)
        };
        let asked =
            self.slices.map(|_| "--slices").or((self.precision != PrecisionKind::Float32).then_some("--precision"));
        if let (Some(option), DeviceKind::Cpu | DeviceKind::Timed) = (asked, self.device) {
            return Err(Failure::Usage(format!("{option} is for GPUs; leave it out, or use --device cuda")));
        }
        if ranks.size() > 1 && self.slices.is_some_and(|slices| slices > 1) {
            output.remark("ranks that share a GPU take turns on the whole of it: losses are right, times mean little");
        }
        match self.device {
            DeviceKind::Cpu => Ok(Chosen::Cpu),
            DeviceKind::Timed => Ok(Chosen::Timed),
            DeviceKind::Cuda => cuda().map(Chosen::Cuda).map_err(|why| {
                Failure::Environment(format!(
                    "{why}\npipesim doctor says what else is there; --device cpu needs nothing"
                ))
            }),
            DeviceKind::Auto => {
                let found = cuda();
                // All ranks must choose alike.
                let all =
                    ranks.exchange(vec![u8::from(found.is_ok())]).map_err(|lost| Failure::Hang(lost.to_string()))?;
                match found {
                    Ok(driver) if all.iter().all(|able| *able == [1]) => {
                        output.remark(&match self.slices {
                            None => "device: cuda, as there is a usable GPU for every device".to_string(),
                            Some(slices) => format!("device: cuda, {slices} devices a GPU"),
                        });
                        Ok(Chosen::Cuda(driver))
                    }
                    Ok(_) => Ok(Chosen::Cpu),
                    Err(why) if asked.is_some() => Err(Failure::Environment(format!(
                        "{} is for GPUs, which cannot be used here: {why}",
                        asked.unwrap_or_default()
                    ))),
                    Err(why) => {
                        let why = why.split(';').next().unwrap_or_default();
                        output.remark(&format!("device: cpu, a thread a device (cuda: {why})"));
                        Ok(Chosen::Cpu)
                    }
                }
            }
        }
    }

    /// The links, the best one in the place of `auto`.
    ///
    /// # Errors
    /// A link that these devices cannot use.
    pub fn links(&self, chosen: Chosen, ranks: &Ranks, devices: u32) -> Result<Vec<LinkKind>, Failure> {
        let best = self.best_link(chosen, ranks, devices)?;
        let legal: &[LinkKind] = match chosen {
            Chosen::Cuda(_) => &[LinkKind::Copy, LinkKind::Nvshmem, LinkKind::Nccl, LinkKind::Local, LinkKind::Mpi],
            _ => &[LinkKind::Local, LinkKind::Mpi],
        };
        let resolve = |&link: &LinkKind| -> Result<LinkKind, Failure> {
            let link = if link == LinkKind::Auto { best } else { link };
            let refuse = |why: String| Err(Failure::Usage(format!("--link {}: {why}", link.name())));
            if !legal.contains(&link) {
                let names: Vec<&str> = legal.iter().map(|link| link.name()).collect();
                return refuse(format!("these devices use --link {}; leave --link out", names.join(" or ")));
            }
            if link == LinkKind::Mpi && !ranks.under_mpi() {
                let how = if HAS_MPI { "start with mpirun" } else { "build with --features mpi and start with mpirun" };
                return refuse(format!("expected ranks that mpirun started, found none; leave --link out, or {how}"));
            }
            if matches!(link, LinkKind::Local | LinkKind::Copy) && !ranks.share_memory() {
                return refuse(
                    "expected all ranks on one machine, found several; use mpi, nvshmem or nccl".to_string(),
                );
            }
            if link == LinkKind::Nccl && self.slices.is_some_and(|slices| slices > 1) {
                return refuse("expected a GPU for each device, found --slices; use copy or nvshmem".to_string());
            }
            let wanted = match link {
                LinkKind::Nccl => Some(&NCCL),
                LinkKind::Nvshmem => Some(&NVSHMEM),
                _ => None,
            };
            if let Some(missing) = wanted.and_then(|wanted| library::open(wanted).err()) {
                return Err(Failure::Environment(format!("--link {}: {missing}", link.name())));
            }
            if link == LinkKind::Nvshmem && ranks.size() < devices {
                return refuse(format!("expected a rank for each device; start {devices} with -n {devices}"));
            }
            Ok(link)
        };
        let mut links: Vec<LinkKind> = self.link.iter().map(resolve).collect::<Result<_, _>>()?;
        let mut seen = Vec::new();
        links.retain(|&link| {
            !seen.contains(&link) && {
                seen.push(link);
                true
            }
        });
        Ok(links)
    }

    fn best_link(&self, chosen: Chosen, ranks: &Ranks, devices: u32) -> Result<LinkKind, Failure> {
        if !matches!(chosen, Chosen::Cuda(_)) || !self.link.contains(&LinkKind::Auto) {
            return Ok(if ranks.under_mpi() { LinkKind::Mpi } else { LinkKind::Local });
        }
        if ranks.size() == 1 {
            return Ok(LinkKind::Copy);
        }
        let nvshmem = ranks.size() >= devices && self.slices.is_none() && library::open(&NVSHMEM).is_ok();
        let all = ranks.exchange(vec![u8::from(nvshmem)]).map_err(|lost| Failure::Hang(lost.to_string()))?;
        Ok(match (all.iter().all(|able| *able == [1]), ranks.share_memory()) {
            (true, _) => LinkKind::Nvshmem,
            (false, true) => LinkKind::Copy,
            (false, false) => LinkKind::Mpi,
        })
    }

    /// What `link` promises on these devices, where `asked` is what --delivery says. CPU and timed devices emulate whatever is
    /// asked for; NCCL can be given any queues, by default one a peer and direction.
    ///
    /// # Errors
    /// A delivery that the link does not have.
    pub fn delivery(chosen: Chosen, link: LinkKind, asked: Delivery) -> Result<Delivery, Failure> {
        match (chosen, link, asked) {
            (Chosen::Cpu | Chosen::Timed, ..) => Ok(asked),
            (Chosen::Cuda(_), LinkKind::Nccl, Delivery::OneSided) => {
                Ok(Delivery::Channel(ChannelOptions { queues: QueueCount::PerDirection, ..ChannelOptions::default() }))
            }
            (Chosen::Cuda(_), LinkKind::Nccl, Delivery::Channel(options))
                if options.receives == Receives::JustInTime =>
            {
                Ok(asked)
            }
            (Chosen::Cuda(_), _, Delivery::OneSided) if link != LinkKind::Nccl => Ok(asked),
            _ => Err(Failure::Usage(format!(
                "--delivery {asked}: GPUs under --link {} do not deliver so; leave --delivery out",
                link.name()
            ))),
        }
    }

    /// What sessions are made of, where the link delivers like this.
    ///
    /// # Errors
    /// The GPUs cannot be had.
    pub fn backend(
        &self,
        chosen: Chosen,
        (link, delivery): (LinkKind, Delivery),
        ranks: &Ranks,
        devices: u32,
    ) -> Result<Backend, Failure> {
        let Chosen::Cuda(driver) = chosen else { return Ok(Backend::Cpu) };
        let gpus = open(ranks, devices, self.slices, driver).map_err(|e| Failure::Environment(format!("{e:#}")))?;
        let precision = match self.precision {
            PrecisionKind::Float32 => Precision::F32,
            PrecisionKind::Bfloat16 => Precision::Bf16,
        };
        let channel = match delivery {
            Delivery::Channel(options) => options,
            _ => ChannelOptions::default(),
        };
        Ok(Backend::Cuda { gpus, precision, link: link.carrier(channel) })
    }

    /// What a command measures on that knows one link and no clocks.
    ///
    /// # Errors
    /// As [`DeviceOptions::choose`], [`DeviceOptions::links`] and [`DeviceOptions::backend`]; several links; timed devices.
    pub fn sole_backend(
        &self,
        ranks: &Ranks,
        devices: u32,
        output: &OutputOptions,
    ) -> Result<(Backend, LinkKind), Failure> {
        let chosen = self.choose(ranks, devices, output)?;
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
        let delivery = DeviceOptions::delivery(chosen, link, Delivery::OneSided)?;
        Ok((self.backend(chosen, (link, delivery), ranks, devices)?, link))
    }
}
