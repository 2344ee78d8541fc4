//! The GPUs of a rank's devices: which GPU or slice each device gets, and their part in a run.

use super::super::groups::optimizer_share;
use super::super::link::Transport;
use super::super::program::Runners;
use super::super::shared::Shared;
use super::super::watch::Fault;
use super::accelerator::Accelerator;
use super::endpoint::{Endpoint, GpuLink};
use super::sums::{WorkerSums, sums};
use crate::ranks::Ranks;
use anyhow::{Context as _, Error, Result, ensure};
use pipesim_gpu::algorithms;
use pipesim_gpu::attention;
use pipesim_gpu::library::{self, CUBLASLT, NVRTC};
use pipesim_gpu::{
    Driver, Gpu, GraphCounts, GraphUse, Graphs, Precision, Sampler, Samples, Unsupported, Unusable, enable_peers,
};
use pipesim_models::model_spec::{MicroBatch, ModelSpec, Stage, Storage};
use pipesim_schedule::mesh::Mesh;
use pipesim_schedule::op::{Kind, Op};
use pipesim_train::compute::cuda::{Sharing, parameter_bytes, stage_gradient_bytes, storage, tied_gradient_bytes};
use pipesim_train::model::{Parameters, SliceOps, StageModule, WorkerShare};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// Key of the provenance with the algorithms of cuBLASLt, if they are not its first proposals.
pub const PRODUCTS: &str = "products";

/// Key of the provenance with what CUDA graphs did, if they are used.
pub const GRAPHS: &str = "cuda_graphs";

/// The GPUs of this rank's devices, in order.
pub struct Gpus {
    gpus: Vec<Arc<Gpu>>,
    precision: Precision,
    /// How CUDA graphs are used, if they are.
    graphs: Option<GraphUse>,
    sampler: Mutex<Option<Sampler>>,
    /// What was sampled last, by GPU.
    samples: Mutex<BTreeMap<u32, Samples>>,
}

impl Gpus {
    /// Opens one GPU per device, or per `slices` devices; activations are bfloat16 or float32. In one process slices are green
    /// contexts with their own multiprocessors; ranks that share a GPU take turns on all of it.
    pub fn open(ranks: &Ranks, devices: u32, slices: Option<u32>, bfloat16: bool) -> Result<Gpus> {
        let driver = Driver::open()?;
        library::open(&CUBLASLT)?;
        if std::env::var_os("PIPESIM_KERNELS").is_none() {
            library::open(&NVRTC)?;
        }
        let precision = if bfloat16 { Precision::Bf16 } else { Precision::F32 };
        let places = places(ranks, devices, slices, driver.devices())?;
        let mut sliced: BTreeMap<u32, Vec<Option<Arc<Gpu>>>> = BTreeMap::new();
        let mut gpus = Vec::new();
        for (ordinal, slice) in places {
            match slices.filter(|_| ranks.size() == 1) {
                None => gpus.push(Arc::new(Gpu::whole(driver, ordinal)?)),
                Some(count) => {
                    if let std::collections::btree_map::Entry::Vacant(place) = sliced.entry(ordinal) {
                        place.insert(
                            Gpu::slices(driver, ordinal, count)?.into_iter().map(|gpu| Some(Arc::new(gpu))).collect(),
                        );
                    }
                    let all = sliced.get_mut(&ordinal).and_then(|all| all.get_mut(slice as usize));
                    gpus.extend(all.and_then(Option::take));
                }
            }
        }
        enable_peers(driver, &gpus.iter().map(AsRef::as_ref).collect::<Vec<_>>())?;
        Ok(Gpus { gpus, precision, graphs: None, sampler: Mutex::default(), samples: Mutex::default() })
    }

    /// Launches what ops enqueue as CUDA graphs, or does not.
    pub fn with_graphs(self, are_used: bool) -> Gpus {
        Gpus { graphs: are_used.then(GraphUse::default), ..self }
    }

    /// What CUDA graphs did on all devices of this rank, if they are used.
    fn graphs_in_words(&self) -> Option<String> {
        let used = self.graphs.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        let sessions = used.keys().map(|(session, _)| session).collect::<BTreeSet<_>>().len();
        let all = used.values().fold(GraphCounts::default(), |all, one| all.and(one));
        let GraphCounts { calls, launches, captured, refused, first_refusal } = all;
        let step = if sessions == 1 { "a step".to_string() } else { format!("a step of each of {sessions} sessions") };
        let why = first_refusal.map_or(String::new(), |(call, code)| format!(" (the first by {call}, code {code})"));
        Some(format!("{calls} calls in {launches} launches in {step}, {captured} graphs, {refused} refused{why}"))
    }

    /// Number of the next session that uses graphs.
    fn next_session(&self) -> u32 {
        let used = self.graphs.as_ref().map(|graphs| graphs.lock().unwrap_or_else(PoisonError::into_inner));
        used.and_then(|used| used.keys().next_back().map(|(session, _)| session + 1)).unwrap_or(0)
    }

    /// The PCI address of each GPU, by its number; slices share one.
    fn addresses(&self) -> BTreeMap<u32, &str> {
        self.gpus.iter().map(|gpu| (gpu.ordinal(), gpu.facts().pci.as_str())).collect()
    }

    /// Begins to sample clock, power and throttling.
    pub fn begin_sampling(&self) {
        let addresses: Vec<&str> = self.addresses().into_values().collect();
        *self.sampler.lock().unwrap_or_else(PoisonError::into_inner) = Sampler::start(&addresses);
    }

    /// Ends sampling, for [`Gpus::describe`]. Returns remarks: whether a GPU was slowed down, how products were chosen, and what graphs
    /// did.
    pub fn end_sampling(&self) -> Vec<String> {
        let sampler = self.sampler.lock().unwrap_or_else(PoisonError::into_inner).take();
        let sampled = sampler.map(Sampler::end).unwrap_or_default();
        let samples: BTreeMap<u32, Samples> = self.addresses().into_keys().zip(sampled).collect();
        let slowed =
            samples.iter().filter_map(|(number, samples)| Some(format!("GPU {number}: {}", samples.slowed()?)));
        let slowed: Vec<String> = slowed.collect();
        *self.samples.lock().unwrap_or_else(PoisonError::into_inner) = samples;
        let slowed = (!slowed.is_empty()).then(|| {
            format!("note: GPUs were slowed down while steps were measured, so times are longer: {}", slowed.join("; "))
        });
        let (all, others) = algorithms::counts();
        let chosen = (all > 0).then(|| {
            format!("note: {others} of {all} products take another algorithm than cuBLASLt's first; the JSON has them as {PRODUCTS}")
        });
        let graphs = self.graphs_in_words().map(|words| format!("note: CUDA graphs: {words}"));
        slowed.into_iter().chain(chosen).chain(graphs).collect()
    }

    /// Whether `error` means that this machine lacks something that GPUs need.
    pub fn is_unavailable(error: &Error) -> bool {
        Unusable::is_behind(error)
    }

    /// Whether `error` means that this GPU does not support the model or schedule.
    pub fn is_unsupported(error: &Error) -> bool {
        Unsupported::is_behind(error)
    }

    /// Returns a short description.
    pub fn in_words(&self) -> String {
        let name = self.gpus.first().map_or("no GPU here", |gpu| gpu.facts().name.as_str());
        let slices = self.gpus.first().and_then(|gpu| gpu.slice());
        let slices = slices.map_or(String::new(), |(_, n)| format!(", {n} slices a GPU"));
        format!("{name}{slices}, {}", self.precision.name())
    }

    /// Number of slices, if all devices are slices of one GPU.
    pub fn slices_of_one(&self) -> Option<u32> {
        let first = self.gpus.first()?;
        let (_, count) = first.slice().filter(|&(_, count)| count > 1)?;
        self.gpus.iter().all(|gpu| gpu.facts().ordinal == first.facts().ordinal).then_some(count)
    }

    /// Adds GPUs (as `key`), precision and driver to the provenance of reports.
    pub fn describe(&self, key: &str, map: &mut BTreeMap<String, String>) {
        let gpu = |gpu: &Arc<Gpu>| {
            let facts = gpu.facts();
            let slice = gpu.slice().map_or(String::new(), |(r, n)| format!(" slice {r} of {n}"));
            format!("{} (GPU {}{slice}, {} multiprocessors)", facts.name, facts.ordinal, gpu.multiprocessors())
        };
        map.insert(key.to_string(), self.gpus.iter().map(gpu).collect::<Vec<_>>().join("; "));
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if !samples.is_empty() {
            let each = samples.iter().map(|(number, samples)| format!("GPU {number}: {samples}"));
            map.insert(format!("clocks of {key}"), each.collect::<Vec<_>>().join("; "));
        }
        map.insert("precision".to_string(), self.precision.name().to_string());
        if attention::takes_cudnn() {
            let version = attention::cudnn_version().unwrap_or_default();
            map.insert("attention".to_string(), format!("cuDNN {version}"));
        }
        if !algorithms::takes_first() {
            map.insert(PRODUCTS.to_string(), algorithms::record());
        }
        if let Some(words) = self.graphs_in_words() {
            map.insert(GRAPHS.to_string(), words);
        }
        if let Ok(driver) = Driver::open() {
            let (major, minor) = driver.version();
            map.insert("driver".to_string(), format!("CUDA {major}.{minor}"));
        }
    }

    /// Size in bytes of a number of an activation.
    pub fn number_bytes(&self) -> usize {
        self.precision.bytes()
    }

    /// Returns the size in bytes of a number of an activation, and on a worker of a mesh in which `optimizers` share the optimizer's
    /// work, of the tied gradient, and of each stage's gradient.
    pub fn bytes(
        &self,
        spec: &ModelSpec,
        stages: &[Stage],
        mesh: Mesh,
        optimizers: usize,
    ) -> (usize, usize, Vec<usize>) {
        let sharing = sharing(mesh, optimizers);
        let gradients = stages.iter().map(|stage| stage_gradient_bytes(spec, stage, sharing)).collect();
        (self.number_bytes(), tied_gradient_bytes(spec, sharing), gradients)
    }

    /// Returns how GPUs on `mesh` store activations of micro-batches of `rows` tokens.
    pub fn storage(&self, rows: usize, mesh: Mesh) -> Storage {
        storage(self.precision, rows, sharing(mesh, 1))
    }

    /// Returns the bytes of the parameters, gradients and moments of the worker that holds most of `stages`, if `optimizers` workers
    /// share the optimizer's work.
    pub fn state_bytes(&self, spec: &ModelSpec, stages: &[Stage], mesh: Mesh, optimizers: usize) -> usize {
        parameter_bytes(spec, stages.iter(), self.precision, sharing(mesh, optimizers))
    }

    /// Creates this rank's workers, each with the stages that it holds. All ranks must call this together.
    pub fn runners(
        &self,
        shared: &Arc<Shared>,
        Transport { link, delivery }: Transport,
        parameters: &Parameters,
        (MicroBatch { sequences, tokens }, slices): (MicroBatch, &[usize]),
        held: &dyn Fn(u32) -> Vec<(u32, Stage)>,
        fault: Option<Fault>,
    ) -> Result<Runners> {
        let workers = shared.ranks.devices(shared.workers());
        let (expected, found) = (workers.len(), self.gpus.len());
        ensure!(expected == found, "expected a GPU for each of {expected} workers, found {found}: open as many");
        let gpus: BTreeMap<u32, Arc<Gpu>> = workers.clone().zip(self.gpus.iter().cloned()).collect();
        let endpoints = gpus.iter().map(|(&worker, gpu)| Endpoint::new(worker, gpu, shared));
        let links = (link.ends)(endpoints.collect(), shared, delivery)?;
        let mut sums = sums(&gpus, shared)?;
        let sizes = [sequences, tokens, shared.plan.graph.schedule().microbatches as usize];
        let session = self.next_session();
        let module = |((worker, gpu), link): ((u32, Arc<Gpu>), GpuLink)| -> Result<_> {
            let WorkerSums { tensor, data, guard } = sums.remove(&worker).context("groups of every worker")?;
            let optimizer = optimizer_share(&shared.plan.graph.schedule().placement, shared.mesh, worker);
            let share = WorkerShare { ranks: tensor, shares_rows: shared.mesh.sequence_parallel, optimizer };
            let program = shared.plan.graph.schedule().program(shared.mesh.device(worker)).iter();
            let recomputed: Vec<Op> = program.copied().filter(|op| op.kind() == Kind::R).map(|op| op.alone()).collect();
            let has_copies = shared.plan.graph.schedule().has_copies();
            let (held, ops) = (held(worker), SliceOps { slices, recomputed: &recomputed, has_copies });
            let mut module = StageModule::on_gpu_rank(&gpu, parameters, &held, sizes, ops, self.precision, share)?;
            module.average_over(shared.mesh.data);
            if let Some(told) = &self.graphs {
                module.use_graphs(Graphs::new((session, worker), told));
            }
            Ok((worker, module, link, data, guard))
        };
        let mut modules = gpus.into_iter().zip(links).map(module).collect::<Result<Vec<_>>>()?;
        if algorithms::are_timed() && shared.ranks.size() > 1 {
            let told = shared.ranks.exchange(algorithms::record().into_bytes())?;
            let told = told.iter().map(|record| std::str::from_utf8(record)).collect::<Result<Vec<_>, _>>()?;
            algorithms::adopt(told.into_iter())?;
            modules.iter_mut().try_for_each(|(_, module, ..)| module.take_algorithms())?;
        }
        let each = modules.into_iter();
        each.map(|(worker, module, link, data, guard)| {
            Accelerator::runner(worker, module, link, data, guard, shared, fault)
        })
        .collect()
    }
}

fn sharing(mesh: Mesh, optimizers: usize) -> Sharing {
    Sharing { ranks: mesh.tensor as usize, row_ranks: mesh.row_ranks() as usize, optimizers }
}

/// Returns the indices of GPU and slice for each device of this rank.
///
/// Devices of a machine take its GPUs in order, `slices` devices per GPU. A rank that sees only its own GPUs, as some launchers
/// arrange it, counts by itself.
pub fn places(ranks: &Ranks, devices: u32, slices: Option<u32>, visible: u32) -> Result<Vec<(u32, u32)>> {
    let each = slices.unwrap_or(1);
    let (here, own) = (ranks.devices_here(devices), ranks.devices(devices));
    let room = u64::from(visible) * u64::from(each);
    let alone = ranks.under_mpi() && here.len() as u64 > room;
    let among = if alone { own.clone().collect() } else { here };
    ensure!(
        among.len() as u64 <= room,
        "expected at most {room} devices on {visible} visible GPUs{}, found {}: ask for fewer `stages`, `tp` or `dp`, for `gpu-slices`, or \
         use `device` cpu",
        slices.map_or(String::new(), |n| format!(" with `gpu-slices` {n}")),
        among.len()
    );
    let place = |device: u32| {
        let index = among.iter().position(|&other| other == device).unwrap_or(0) as u32;
        (index / each, index % each)
    };
    Ok(own.map(place).collect())
}
