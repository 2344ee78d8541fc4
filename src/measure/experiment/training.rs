//! A training run: model, data, devices, and the executor sessions that train it.

use super::config::DEFAULT_SEQUENCE;
use super::{Backend, Devices, Error, TrainingConfig, Work};
use pipesim_answer::resolve;
use pipesim_cost::{CostFile, CostTable, StepCosts};
use pipesim_exec::ranks::Ranks;
use pipesim_exec::{self as exec, Batch, Host, Runners, Session, Settings, Shared, Sizes, TensorGroup, Update};
use pipesim_models::model_spec::{MicroBatch, ModelSpec, Stage, Storage};
use pipesim_schedule::check::check;
use pipesim_schedule::delivery::Delivery;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::mesh::Mesh;
use pipesim_schedule::op::Kind;
use pipesim_system::{cores, provenance};
use pipesim_train::compute::{Alone, Collective, OptimizerShare};
use pipesim_train::model::{self, Config, Parameters, StageModule, Tokens, WorkerShare};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Speed of a slow core, in FLOP/s, for the time-out.
const SLOW_CORE_FLOPS: f64 = 1e10;

/// A training run, whatever its schedule.
pub struct Training {
    /// The description it is made from.
    pub training_config: TrainingConfig,
    /// The parameters that every schedule starts from.
    pub parameters: Parameters,
    /// The tokens of the data.
    pub tokens: Tokens,
    /// Size of a micro-batch.
    pub micro_batch: MicroBatch,
    /// Longest wait of a device for its data.
    pub timeout: Duration,
    /// The processes that train together.
    pub ranks: Arc<Ranks>,
    /// The devices.
    pub backend: Backend,
}

impl TrainingConfig {
    /// Returns the training on CPU threads, with steps of `microbatches` micro-batches.
    ///
    /// # Errors
    /// Contradictory sizes, unreadable files, data that does not fit the model.
    pub fn training(&self, microbatches: u32, ranks: &Arc<Ranks>) -> Result<Training, Error> {
        let config = self.config()?;
        config.check_tensor_ranks(self.mesh.tensor as usize).map_err(|error| Error::Usage(error.to_string()))?;
        if microbatches == 0 {
            return Err(Error::Usage("expected at least 1 micro-batch, found 0; ask for one or more".to_string()));
        }
        let all = microbatches.saturating_mul(self.mesh.data);
        let batch = self.batch.unwrap_or(all);
        if !batch.is_multiple_of(all) {
            let replicas = if self.mesh.data > 1 { format!(" times `dp` {}", self.mesh.data) } else { String::new() };
            return Err(Error::Usage(format!(
                "expected `batch` to be a multiple of `micro` {microbatches}{replicas}, found {batch}; try {}",
                batch.next_multiple_of(all)
            )));
        }
        let (longest, limit) = self.longest_sequence(&config)?.unwrap_or((usize::MAX, ""));
        let sequence_tokens = self.sequence_tokens.unwrap_or(longest.min(DEFAULT_SEQUENCE));
        if sequence_tokens > longest {
            return Err(Error::Usage(format!(
                "expected `seq` of at most {longest}, {limit}, found {sequence_tokens}; lower it"
            )));
        }
        if self.mesh.sequence_parallel && self.mesh.tensor == 1 {
            return Err(Error::Usage(
                "`sequence-parallel` is for tensor-parallel ranks, found one; give `tp` 2 or more, too".to_string(),
            ));
        }
        self.require_rows((batch / all) as usize * sequence_tokens)?;
        let tokens = self.tokens(&config)?;
        if tokens.vocabulary_needed > config.vocabulary {
            return Err(Error::Usage(format!(
                "the data holds token id {}, but the model's vocabulary has {} ids; choose other data, `tokenizer` or `vocabulary`",
                tokens.vocabulary_needed - 1,
                config.vocabulary
            )));
        }
        let step = MicroBatch { sequences: batch as usize, tokens: sequence_tokens };
        let step_flops: u128 = [Kind::F, Kind::B].map(|kind| config.spec().flops(kind, step)).iter().sum();
        let training = Training {
            training_config: self.clone(),
            parameters: self.parameters(&config)?,
            tokens,
            micro_batch: MicroBatch { sequences: (batch / all) as usize, tokens: sequence_tokens },
            timeout: self.timeout(step_flops as f64 / SLOW_CORE_FLOPS),
            ranks: ranks.clone(),
            backend: Backend::default(),
        };
        training.batch(0, microbatches).map_err(|short| Error::Usage(short.to_string()))?;
        Ok(training)
    }

    /// Checks that the ranks that share the rows of a micro-batch have equally many.
    fn require_rows(&self, rows: usize) -> Result<(), Error> {
        let ranks = self.mesh.row_ranks();
        if rows.is_multiple_of(ranks as usize) {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "expected a micro-batch's {rows} tokens to be a multiple of `tp` {ranks} under `sequence-parallel`; choose another `seq`"
        )))
    }
}

impl Training {
    /// The model's sizes.
    pub fn config(&self) -> &Config {
        &self.parameters.config
    }

    /// The model's description.
    pub(super) fn spec(&self) -> ModelSpec {
        self.config().spec()
    }

    /// The workers of each pipeline device.
    pub fn mesh(&self) -> Mesh {
        self.training_config.mesh
    }

    /// Tokens per micro-batch, of all replicas together.
    pub(super) fn microbatch_tokens(&self) -> usize {
        self.micro_batch.rows() * self.mesh().data as usize
    }

    /// Returns the work of a step of `microbatches` micro-batches per replica.
    pub fn work(&self, microbatches: u32) -> Work {
        let MicroBatch { sequences, tokens } = self.micro_batch;
        let sequences = sequences * (microbatches * self.mesh().data) as usize;
        Work::new(self.config(), MicroBatch { sequences, tokens })
    }

    /// `cpu` or `cuda`.
    pub fn device_kind(&self) -> &'static str {
        match self.backend.devices {
            Devices::Cpu => "cpu",
            Devices::Cuda(_) => "cuda",
        }
    }

    /// Number of cores that the devices share, if they are threads of this process, or of slices, if they are slices of one GPU.
    pub(super) fn shares_cores(&self) -> Option<u32> {
        match &self.backend.devices {
            _ if self.ranks.size() > 1 => None,
            Devices::Cpu => Some(cores()),
            Devices::Cuda(gpus) => gpus.slices_of_one(),
        }
    }

    /// Name of the devices for a headline.
    pub fn devices_in_words(&self) -> String {
        match &self.backend.devices {
            Devices::Cpu => "CPU threads".to_string(),
            Devices::Cuda(gpus) => gpus.in_words(),
        }
    }

    /// Begins to sample clock, power and throttling of GPUs.
    pub(super) fn begin_sampling(&self) {
        if let Devices::Cuda(gpus) = &self.backend.devices {
            gpus.begin_sampling();
        }
    }

    /// Ends sampling, for the provenance. Returns remarks: whether a GPU was slowed down, and how products were chosen.
    pub(super) fn end_sampling(&self) -> Vec<String> {
        match &self.backend.devices {
            Devices::Cuda(gpus) => gpus.end_sampling(),
            Devices::Cpu => Vec::new(),
        }
    }

    /// Provenance of its figures: program, machine and date, devices and ranks.
    pub fn provenance(&self) -> BTreeMap<String, String> {
        let mut map = provenance();
        if let Devices::Cuda(gpus) = &self.backend.devices {
            gpus.describe(if self.ranks.size() > 1 { "gpus of rank 0" } else { "gpus" }, &mut map);
        }
        if self.ranks.size() > 1 {
            let pipesim_exec::ranks::Alignment { method, uncertainty_ns, .. } = self.ranks.alignment();
            map.insert("ranks".to_string(), self.ranks.size().to_string());
            map.insert("clocks of ranks".to_string(), format!("{method}; off by at most {uncertainty_ns} ns"));
        }
        if self.mesh() != Mesh::default() {
            map.insert("mesh".to_string(), self.mesh().to_string());
        }
        map
    }

    /// Returns the tokens of each slice of a sequence under `graph`: one slice if micro-batches are whole.
    ///
    /// # Errors
    /// Fewer tokens than slices.
    pub fn slices(&self, graph: &TaskGraph) -> Result<Vec<usize>, Error> {
        let slices = graph.schedule().slices().tokens(self.micro_batch.tokens);
        slices.map_err(|error| Error::Usage(format!("{error} tokens; raise `seq`, or ask for fewer slices")))
    }

    /// Returns the layers of each stage of `graph`.
    pub fn stages(&self, graph: &TaskGraph) -> Result<Vec<Stage>, Error> {
        check_ops(graph)?;
        self.slices(graph)?;
        let (stages, devices) = (graph.schedule().placement.stages() as usize, graph.schedule().devices());
        let virtual_stages = match stages / devices.max(1) as usize {
            1 => String::new(),
            chunks => format!(" ({devices} devices x {chunks} virtual stages)"),
        };
        let split = self.spec().split(stages, self.training_config.layers.as_deref());
        split.map_err(|error| Error::Usage(format!("{error}{virtual_stages}")))
    }

    /// Returns the costs of the ops and step ops of `graph` by the parts of `costs`. From two micro-batch sizes, costs of others are
    /// interpolated.
    pub fn tables(&self, costs: &CostFile, graph: &TaskGraph) -> Result<(CostTable, StepCosts), Error> {
        let (stages, placement) = (self.stages(graph)?, &graph.schedule().placement);
        costs.require_copies(graph.schedule()).map_err(resolve::Error::from)?;
        let size = self.micro_batch;
        let has_line = costs.parts.iter().any(|part| part.size() != costs.size());
        let at_size = has_line.then(|| costs.at_size(&self.spec(), self.micro_batch));
        let costs = at_size.as_ref().unwrap_or(costs);
        let slices = self.slices(graph)?;
        let sliced = (slices.len() > 1).then(|| costs.at_slices(&self.spec(), self.micro_batch, &slices));
        let costs = sliced.as_ref().unwrap_or(costs);
        let mut table = costs.sliced_table(placement, &stages, size, &slices).map_err(resolve::Error::from)?;
        table.keep = self.keep_shares(graph, &stages, table.keep)?;
        let steps = costs.step_costs(placement, &stages, self.training_config.clip.is_some());
        Ok(steps.begun_early(graph, table))
    }

    /// Converts costs that were measured in another training of the same width.
    pub(super) fn costs_from(&self, costs: &CostFile) -> CostFile {
        let spec = self.spec();
        CostFile { layers: spec.outline().layers() as u32, ..costs.at_size(&spec, self.micro_batch) }
    }

    /// Returns a checksum of all sizes of the model and its layers per stage.
    pub(super) fn shape(&self) -> String {
        // how far the vocabulary is padded depends on the device, which may be another one
        let config = Config { vocabulary_multiple: 1, ..*self.config() };
        let text = format!("{config:?} {:?}", self.training_config.layers);
        format!("{:08x}", crc32fast::hash(text.as_bytes()))
    }

    /// Describes the sizes that times depend on most.
    pub(super) fn in_words(&self) -> String {
        let Config { layers, channels, heads, vocabulary, .. } = *self.config();
        let MicroBatch { sequences, tokens } = self.micro_batch;
        let clipped = if self.training_config.clip.is_some() { ", clipped" } else { "" };
        let mesh = if self.mesh() == Mesh::default() { String::new() } else { format!(", {}", self.mesh()) };
        format!(
            "{layers} blocks of {channels} channels and {heads} heads, {vocabulary} token ids, micro-batches of {sequences} x {tokens} \
             tokens{clipped}{mesh}"
        )
    }

    /// Checks that `costs` are of a model of this width and complete for `graphs`.
    pub(super) fn require_costs(&self, costs: &CostFile, graphs: &[TaskGraph]) -> Result<(), Error> {
        let MicroBatch { sequences, tokens } = costs.size();
        let edge = self.spec().edge(costs.size());
        if costs.mesh != self.mesh() {
            return Err(Error::Usage(format!(
                "expected costs that were measured with {}, found {}; measure them with `pipesim profile {}`",
                self.mesh(),
                costs.mesh,
                self.mesh()
            )));
        }
        let edge = edge / self.mesh().row_ranks() as usize;
        let (expected, found) = ((edge * self.number_bytes()) as u64, costs.link.bytes);
        if expected != found {
            return Err(Error::Usage(format!(
                "expected costs of this model, whose hidden state of {sequences} x {tokens} tokens has {expected} bytes, found one of \
                 {found} bytes (link.bytes); measure this model with `pipesim profile`"
            )));
        }
        graphs.iter().try_for_each(|graph| self.tables(costs, graph).map(drop))
    }

    /// Returns the tokens of training step `step`, from 0, in `microbatches` micro-batches per replica.
    pub fn batch(&self, step: usize, microbatches: u32) -> Result<Arc<Batch>, Error> {
        let step = if self.training_config.repeat_batch { 0 } else { step };
        let MicroBatch { sequences, tokens } = self.micro_batch;
        let all = microbatches as usize * self.mesh().data as usize;
        let (inputs, targets) = self.tokens.batch(step, sequences * all, tokens)?;
        Ok(Arc::new(Batch { inputs, targets }))
    }

    /// Returns the parameter update of step `step`, from 0.
    pub fn update(&self, step: usize) -> Update {
        Update { number: step as u32 + 1, adamw: self.training_config.adamw, clip: self.training_config.clip }
    }

    /// Opens a session: threads, buffers and a copy of the model for this rank's workers of `graph`. All ranks must call this
    /// together.
    pub fn session(&self, graph: &Arc<TaskGraph>) -> Result<Session, Error> {
        self.session_delivering(graph, self.backend.transport.delivery)
    }

    /// Opens a [`Training::session`] between whose CPU threads the guarantees of `delivery` are emulated.
    pub(super) fn session_delivering(&self, graph: &Arc<TaskGraph>, delivery: Delivery) -> Result<Session, Error> {
        let stages = self.stages(graph)?;
        let schedule = graph.schedule();
        // Between GPUs the link itself has these guarantees; hosts only exchange what is enqueued.
        let delivery = if matches!(self.backend.devices, Devices::Cpu) { delivery } else { Delivery::OneSided };
        let settings = settings(self.mesh(), schedule.devices(), self.timeout);
        // A thread that only enqueues is not pinned: threads that NCCL starts inherit its cores.
        let pin = settings.pin && matches!(self.backend.devices, Devices::Cpu);
        let settings = Settings { delivery, pin, ..settings };
        let sizes = self.sizes(graph, &stages)?;
        let shared = Arc::new(Shared::new(graph.clone(), &sizes, &settings, self.ranks.clone())?);
        let runners = match &self.backend.devices {
            Devices::Cpu => self.hosts(&shared, &stages)?,
            Devices::Cuda(gpus) => {
                let refused = |deadlock| format!("{}: {deadlock}take another `link` or schedule", schedule.name);
                check(graph, self.backend.transport.delivery).map_err(|deadlock| Error::Schedule(refused(deadlock)))?;
                let held = |worker| self.held(graph, self.mesh().device(worker), &stages);
                gpus.runners(
                    &shared,
                    self.backend.transport,
                    &self.parameters,
                    (self.micro_batch, &self.slices(graph)?),
                    &held,
                    self.training_config.fault,
                )?
            }
        };
        Ok(exec::start_session(shared, runners, settings)?)
    }

    /// The stages that `device` holds, with their layers.
    fn held(&self, graph: &TaskGraph, device: u32, stages: &[Stage]) -> Vec<(u32, Stage)> {
        let held = graph.schedule().placement.stages_of(device);
        held.map(|stage| (stage, stages[stage as usize].clone())).collect()
    }

    fn hosts(&self, shared: &Arc<Shared>, stages: &[Stage]) -> anyhow::Result<Runners> {
        let (graph, mesh) = (&shared.plan.graph, self.mesh());
        let slices = self.slices(graph)?;
        let host = |worker| {
            let held = self.held(graph, mesh.device(worker), stages);
            let MicroBatch { sequences, tokens } = self.micro_batch;
            let sizes = [sequences, tokens, graph.schedule().microbatches as usize];
            let ranks: Box<dyn Collective> = match mesh.tensor {
                1 => Box::new(Alone),
                _ => Box::new(TensorGroup::new(worker, shared)),
            };
            let optimizer = self.optimizer_share(graph, worker);
            let share = WorkerShare { ranks, shares_rows: mesh.sequence_parallel, optimizer };
            let mut module = StageModule::on_cpu_slices(&self.parameters, &held, sizes, &slices, share)?;
            module.average_over(mesh.data);
            let program = graph.schedule().program(mesh.device(worker)).iter();
            module.recompute(program.copied().filter(|op| op.kind() == Kind::R))?;
            Host::runner(worker, Box::new(module), shared, self.training_config.fault)
        };
        self.ranks.devices(shared.workers()).map(host).collect()
    }

    /// Sizes of the messages between devices.
    fn sizes(&self, graph: &TaskGraph, stages: &[Stage]) -> Result<Sizes, Error> {
        let (spec, float, ranks) = (self.spec(), size_of::<f32>(), self.mesh().tensor as usize);
        let optimizers = self.optimizer_share(graph, 0).members;
        let (number, tied, gradients) = match &self.backend.devices {
            Devices::Cuda(gpus) => gpus.bytes(&spec, stages, self.mesh(), optimizers),
            Devices::Cpu => {
                let of_stages = stages.iter().map(|stage| spec.gradient_share(stage, ranks) * float);
                (float, spec.tied_share(ranks) * float, of_stages.collect())
            }
        };
        let slices = self.slices(graph)?;
        let of_slice = |&tokens: &usize| self.edge_of(tokens) * number;
        let hidden = slices.iter().map(of_slice).max().unwrap_or(0);
        let on_gpus = matches!(self.backend.devices, Devices::Cuda(_));
        Ok(Sizes {
            hidden,
            slices: if slices.len() > 1 { slices.iter().map(of_slice).collect() } else { Vec::new() },
            tied: spec.outline().exchange(&graph.schedule().placement, stages).map(|devices| (devices, tied)),
            stages: gradients,
            norm_parts: spec.squares() * ranks * optimizers,
            past_hosts: on_gpus && !self.backend.transport.link.staged,
            by_collectives: on_gpus && !self.mesh().is_single(),
        })
    }

    /// Runs `steps` steps and restores parameters and optimizer afterwards.
    pub fn warm_up(&self, session: &mut Session, batch: &Arc<Batch>, steps: usize) -> Result<(), exec::Error> {
        session.call(|_, device| device.save())?;
        for step in 0..steps {
            session.step(batch, Some(self.update(step)))?;
        }
        session.call(|_, device| device.restore())
    }

    /// Share of an activation that is kept from I to W, over the whole model, as these devices store it.
    pub fn keep(&self) -> f64 {
        self.spec().keep(self.micro_batch, &self.storage())
    }

    /// How a worker stores what ops keep for later ones.
    fn storage(&self) -> Storage {
        self.storage_of(self.micro_batch.tokens)
    }

    /// The same for slices of `tokens` tokens.
    pub(super) fn storage_of(&self, tokens: usize) -> Storage {
        let mesh = self.mesh();
        match &self.backend.devices {
            Devices::Cpu => {
                let storage = model::storage(self.config().vocabulary_multiple, mesh.tensor as usize);
                Storage { sp: mesh.row_ranks() as usize, ..storage }
            }
            Devices::Cuda(gpus) => gpus.storage(self.micro_batch.sequences * tokens, mesh),
        }
    }

    /// The share of the optimizer's work of `worker` in a session of `graph`.
    pub(super) fn optimizer_share(&self, graph: &TaskGraph, worker: u32) -> OptimizerShare {
        exec::optimizer_share(&graph.schedule().placement, self.mesh(), worker)
    }

    /// Numbers that a worker sends to the next stage per micro-batch.
    fn edge(&self) -> usize {
        self.edge_of(self.micro_batch.tokens)
    }

    /// The same for slices of `tokens` tokens.
    fn edge_of(&self, tokens: usize) -> usize {
        self.spec().edge(MicroBatch { tokens, ..self.micro_batch }) / self.mesh().row_ranks() as usize
    }

    /// Bytes of one number of an activation.
    fn number_bytes(&self) -> usize {
        match &self.backend.devices {
            Devices::Cpu => size_of::<f32>(),
            Devices::Cuda(gpus) => gpus.number_bytes(),
        }
    }

    /// Bytes of a message from one stage to the next.
    pub(super) fn message_bytes(&self) -> usize {
        self.edge() * self.number_bytes()
    }
}

/// Checks that devices can run the ops of `graph`.
pub(super) fn check_ops(graph: &TaskGraph) -> Result<(), Error> {
    let beyond = graph.schedule().ops().iter().find(|op| !op.kind().is_executed());
    let Some(op) = beyond else { return Ok(()) };
    Err(Error::Schedule(format!(
        "devices cannot run {} ({}); predict works; run another schedule",
        op.feature(),
        op.alone()
    )))
}

/// Returns settings for `devices` pipeline devices: threads spin and are pinned if every worker has a core of its own, and otherwise
/// park soon.
pub(super) fn settings(mesh: Mesh, devices: u32, timeout: Duration) -> Settings {
    let room = mesh.world(devices) <= cores();
    let spin = if room { Duration::from_millis(10) } else { Duration::from_micros(20) };
    Settings { pin: room, spin, timeout, delivery: Delivery::OneSided, mesh }
}
