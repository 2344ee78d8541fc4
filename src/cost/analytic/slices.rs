//! Costs beyond whole micro-batches: slices of sequences, forwards that are computed again, and copies to and from the host.

use super::{Analytic, CostError, CostTable, Passes, ns};
use crate::analytic::pass::Pass;
use pipesim_models::layout::ParallelConfig;
use pipesim_models::memory::Memory;
use pipesim_models::model_spec::Stage;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::placement::Placement;
use pipesim_schedule::schedule::Schedule;
use pipesim_schedule::slices::{Slices, TokenSpan};

impl Analytic {
    /// Returns the slices of a sequence in tokens: multiples of the ranks that share rows, in proportion to their lengths.
    ///
    /// # Errors
    /// Equal slices that do not divide the sequence, or a slice without tokens.
    pub(super) fn spans(&self, slices: &Slices) -> Result<Vec<TokenSpan>, CostError> {
        let ParallelConfig { sequence, cp, tp, sequence_parallel, .. } = self.layout;
        let (count, total) = (slices.count(), u64::from(slices.total()));
        let rows = cp.max(1).saturating_mul(if sequence_parallel { tp.max(1) } else { 1 });
        let bound = |slice: usize| {
            let exact = u64::from(slices.before(slice)) * u64::from(sequence) / total;
            if slice == count as usize { sequence } else { exact as u32 / rows * rows }
        };
        let bounds: Vec<u32> = (0..=count as usize).map(bound).collect();
        let spans = bounds.windows(2).map(|pair| TokenSpan { before: pair[0], tokens: pair[1] - pair[0] });
        let spans: Vec<TokenSpan> = spans.collect();
        let is_uneven = slices.are_equal() && spans.iter().any(|span| span.tokens != spans[0].tokens);
        if is_uneven || spans.iter().any(|span| span.tokens == 0) {
            let of = if rows > 1 {
                format!(" of a multiple of {rows} tokens, for the ranks that share them")
            } else {
                String::new()
            };
            let kind = if is_uneven { "equal slices" } else { "slices" };
            return Err(CostError::Hardware(format!(
                "expected the {sequence} tokens of `seq` to divide into {count} {kind}{of}; choose another number of slices or `seq`, or give \
                 their tokens with `slice-lengths`"
            )));
        }
        Ok(spans)
    }

    /// Returns the costs of one slice: the costs of shorter sequences whose tokens also attend to earlier ones.
    fn of_slice(&self, TokenSpan { before, tokens }: TokenSpan) -> Analytic {
        let layout = ParallelConfig { sequence: tokens, ..self.layout.clone() };
        let own = |(&device, own): (&u32, &Analytic)| (device, own.of_slice(TokenSpan { before, tokens }));
        let slice = Analytic { layout, others: self.others.iter().map(own).collect(), ..self.clone() };
        slice.with_passes(before)
    }

    /// Returns the costs of each slice; of whole micro-batches if there is one.
    ///
    /// # Errors
    /// Equal slices that do not divide the sequence, or a slice without tokens.
    pub(super) fn of_slices(&self, slices: &Slices) -> Result<Vec<Analytic>, CostError> {
        if !slices.is_cut() {
            return Ok(vec![self.clone()]);
        }
        Ok(self.spans(slices)?.into_iter().map(|span| self.of_slice(span)).collect())
    }

    /// Returns what computes a stage's layers again, with their communication, as `--recompute full` does. Embedding and head are not
    /// computed again.
    fn repeated(&self, stage: &Stage) -> Pass {
        let layers = self.spec.parts.iter().zip(&*self.passes).filter(|(part, _)| part.is_layer());
        let of = layers.map(|(part, passes): (_, &Passes)| passes.forward * stage.count(part.name) as f64);
        of.fold(Pass::default(), |sum, pass| sum + pass)
    }

    /// Returns the seconds in which each stage's activation of a whole micro-batch is copied to or from the host. The GPUs of a stage that
    /// share a link take turns.
    fn copy_seconds(&self, placement: &Placement, stages: &[Stage]) -> Vec<f64> {
        let memory = self.memory_model();
        let seconds = |(number, stage): (u32, &Stage)| {
            let own = self.on(placement.device_of_stage(number, 0));
            let hardware = &own.machine.hardware;
            let speed = hardware.host_gbytes_per_s * 1e9 * hardware.host_efficiency / own.stage_sharers();
            if speed > 0.0 { memory.left(stage).forward as f64 / speed } else { 0.0 }
        };
        (0..).zip(stages).map(seconds).collect()
    }

    /// Returns the GPUs of a stage that share a link to the host.
    fn stage_sharers(&self) -> f64 {
        self.machine.hardware.gpus_per_host_link.min(self.layout.stage_gpus() as f64).max(1.0)
    }

    /// Returns the number of neighbouring pipeline devices that share links to the host.
    pub fn devices_per_host_link(&self) -> u32 {
        (self.machine.hardware.gpus_per_host_link / self.stage_sharers()).floor().max(1.0) as u32
    }

    /// Returns the costs of ops on `placement`, of slices, of forwards that are computed again, and of copies, in nanoseconds.
    ///
    /// # Errors
    /// As [`Analytic::table`]; equal slices that do not divide the sequence, or a slice without tokens.
    pub fn table_of(&self, placement: &Placement, stages: &[Stage], slices: &Slices) -> Result<CostTable, CostError> {
        let repeats = |costs: &Analytic| {
            let own = |number| costs.on(placement.device_of_stage(number, 0));
            (0..).zip(stages).map(|(number, stage)| ns(own(number).repeated(stage).total())).collect()
        };
        let of = |costs: &Analytic| {
            let mut table = costs.table(placement, stages)?;
            table.extras.repeats = repeats(costs);
            Ok::<CostTable, CostError>(table)
        };
        let mut table = of(self)?;
        if slices.is_cut() {
            let tables = self.of_slices(slices)?.iter().map(of).collect::<Result<Vec<_>, CostError>>()?;
            table.summary.comm = tables.iter().map(|table| table.summary.comm).fold(0.0, f64::max);
            table = CostTable::of_slices(table, tables, placement);
        } else {
            table.extras.copies =
                self.copy_seconds(placement, stages).into_iter().map(|seconds| [ns(seconds); 2]).collect();
        }
        table.check_clock(placement, self.layout.micro.saturating_mul(slices.count()))?;
        Ok(table)
    }

    /// Returns the costs with the shares of an activation that a recomputed unit keeps, and of keys and values.
    pub fn with_shares(&self, table: CostTable, schedule: &Schedule) -> CostTable {
        if !schedule.recomputes() && !schedule.slices().is_cut() {
            return table;
        }
        let Ok(stages) = self.stages(schedule.placement.stages()) else { return table };
        let [stub, kv] = self.memory_model().shares(&stages, schedule.slices().is_cut());
        CostTable { keep: table.keep.with_stub(stub).with_kv(kv), ..table }
    }

    /// Returns the memory of `schedule`, whose ops run at `times`: by op, starts and ends. Only copies need them.
    ///
    /// # Errors
    /// Equal slices that do not divide the sequence, or a slice without tokens.
    pub fn memory_of(
        &self,
        stages: &[Stage],
        schedule: &Schedule,
        times: Option<(&[u64], &[u64])>,
    ) -> Result<Memory, CostError> {
        let (model, bytes) = (self.memory_model(), self.machine.hardware.memory_bytes());
        if !schedule.is_beyond_microbatches() {
            return Ok(self.within(model.memory(bytes, stages, schedule)));
        }
        let spans = if schedule.slices().is_cut() { self.spans(schedule.slices())? } else { Vec::new() };
        Ok(self.within(model.memory_beyond(bytes, stages, schedule, &spans, times)))
    }

    /// Rejects what has no costs or bytes on hardware.
    ///
    /// # Errors
    /// What that is, and what to do.
    pub fn check(&self, schedule: &Schedule) -> Result<(), CostError> {
        let (layout, hardware) = (&self.layout, &self.machine.hardware);
        let (is_cut, is_llm_c) = (schedule.slices().is_cut(), self.machine.stack.outputs_kept == 1.0);
        let why: String = match () {
            () if schedule.shares_vocabulary() => {
                let op = schedule.beyond_microbatches().map(|op| op.to_string()).unwrap_or_default();
                format!("`hardware` knows no passes of a shared vocabulary, found {op}; give `costs` or another schedule")
            }
            () if schedule.is_beyond_microbatches() && is_llm_c => {
                "the stack llm.c keeps every output, without slices, recomputes and copies; take another `stack`".into()
            }
            () if is_cut && !layout.packed.is_empty() => {
                "slices of packed sequences are not modelled; leave `packed` out, or take a schedule without slices".into()
            }
            () if !self.others.is_empty() && schedule.placement.directions() > 1 && self.model.experts.is_some() => {
                "experts on devices that differ are not modelled in both directions; take another schedule".into()
            }
            () if is_cut && layout.moe_overlap => {
                "`moe-overlap` hides the exchange of whole micro-batches, not of slices; leave it out".into()
            }
            () if schedule.recomputes() && layout.recompute.is_of_layers() => {
                format!(
                    "its R computes forwards again, and so does `recompute` {}; leave `recompute` out, or take a schedule without R",
                    layout.recompute
                )
            }
            () if !schedule.has_copies() => return Ok(()),
            () if is_cut => {
                "`hardware` knows no copies of slices, whose keys and values later slices need; give `costs`, or a schedule without slices".into()
            }
            () if hardware.host_gbytes_per_s <= 0.0 => format!(
                "expected the bandwidth of {}'s link to the host, found none; set host_gbytes_per_s in a hardware file of your own",
                hardware.name
            ),
            () => return Ok(()),
        };
        Err(CostError::Hardware(why).of(&schedule.name))
    }

    /// Returns the sum of the passes of `device` in a step of `schedule`, over its slices and with forwards that are computed again.
    pub(super) fn pass_beyond(&self, slices: &[Analytic], stages: &[Stage], schedule: &Schedule, device: u32) -> Pass {
        let (placement, counts) = (&schedule.placement, schedule.counts());
        let of = |op: Op| {
            let (costs, stage) = (slices.get(op.slice_number())?.on(device), stages.get(op.stage() as usize)?);
            let passes = costs.passes(stage);
            let pass = match op.kind() {
                Kind::F => passes.forward,
                Kind::I => passes.input,
                Kind::W => passes.split_weights(),
                Kind::B => passes.backward,
                Kind::R => costs.repeated(stage),
                _ => return None,
            };
            Some(pass * schedule.count_of(&counts, op) as f64)
        };
        let ops = schedule.op_classes().filter(|&op| placement.device_of(op) == device);
        ops.filter_map(of).fold(Pass::default(), |sum, pass| sum + pass)
    }
}
