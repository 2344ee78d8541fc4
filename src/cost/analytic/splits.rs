//! Splits of a model's layers over stages: the one whose busiest device is the lightest, and a lower bound of all of them.

use super::{Analytic, Passes};
use pipesim_models::layout::Zero;
use pipesim_models::model_spec::Stage;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::placement::{Chunk, Placement};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Nanoseconds of forward and backward per micro-batch; the backward is I + W if it is split.
type Times = [f64; 2];

/// Times on one device of what the stages share.
#[derive(Clone, Debug, Default)]
struct ItemTimes {
    /// What the first stage holds in addition to layers: the embedding.
    first: Times,
    /// Layers in model order.
    layers: Vec<Times>,
    /// What the last stage holds in addition: layers that predict further tokens, and the head.
    last: Times,
    /// Shortest times of a layer, by pass.
    shortest: Times,
    /// Time of all layers.
    all: f64,
}

/// Times of what the stages of a model share, on every pipeline device.
#[derive(Clone, Debug)]
pub struct SplitTimes {
    usual: ItemTimes,
    /// Of devices whose GPUs differ.
    others: BTreeMap<u32, ItemTimes>,
    /// Whether all layers take the same time.
    is_even: bool,
    /// Whether the backward is split.
    splits: bool,
    /// Trained parameters of the model on one rank, without and of experts.
    parameters: [f64; 2],
    /// Seconds of the backward of a micro-batch in the whole model.
    backward: f64,
}

fn total([forward, backward]: Times) -> f64 {
    forward + backward
}

impl ItemTimes {
    /// Returns what stage `stage` of `stages` holds in addition to layers.
    fn ends(&self, stage: usize, stages: usize) -> Times {
        let of = |is_there: bool, times: Times| if is_there { times } else { [0.0; 2] };
        let (first, last) = (of(stage == 0, self.first), of(stage + 1 == stages, self.last));
        [first[0] + last[0], first[1] + last[1]]
    }
}

impl SplitTimes {
    fn on(&self, device: u32) -> &ItemTimes {
        self.others.get(&device).unwrap_or(&self.usual)
    }

    /// Returns the layers per stage whose busiest device takes the least time per micro-batch, and of these a split that is as even as
    /// possible. Inner stages have at least one layer and devices at most `most`; layers go to the lightest stage of a device, and to the
    /// later one among equals, which shortens the path of the first micro-batch. Exact if all layers take the same time; otherwise no
    /// layer that changes its stage makes the busiest device lighter. `None` if the devices may not hold all layers.
    pub fn lightest(&self, placement: &Placement, most: &[usize]) -> Option<Vec<usize>> {
        let (stages, layers) = (placement.stages() as usize, self.usual.layers.len());
        let mut counts = least_layers(stages);
        let holders: Vec<Vec<u32>> = (0..placement.stages()).map(|stage| holders(placement, stage)).collect();
        let mut held = vec![0; placement.devices() as usize];
        let each = |device: u32| self.on(device).all / layers.max(1) as f64;
        let of_layer: Vec<f64> = (0..placement.devices()).map(each).collect();
        let ends: Vec<f64> = (0..stages).map(|stage| total(self.on(holders[stage][0]).ends(stage, stages))).collect();
        let mut fixed = vec![0.0; held.len()];
        for (stage, own) in holders.iter().enumerate() {
            for &device in own {
                fixed[device as usize] += ends[stage];
                held[device as usize] += counts[stage];
            }
        }
        if held.iter().zip(most).any(|(held, most)| held > most) {
            return None;
        }
        let mut owned: Vec<Vec<usize>> = vec![Vec::new(); held.len()];
        (0..stages).for_each(|stage| owned[holders[stage][0] as usize].push(stage));
        // the stage of a device, as the first of its holders, that takes the next layer
        let next = |device: usize, counts: &[usize], held: &[usize]| {
            let load = |device: usize| fixed[device] + (held[device] + 1) as f64 * of_layer[device];
            let may = |stage: &usize| holders[*stage].iter().all(|&one| held[one as usize] < most[one as usize]);
            let key = |&stage: &usize| {
                let busiest = holders[stage].iter().map(|&one| load(one as usize)).fold(0.0, f64::max);
                (busiest, ends[stage] + counts[stage] as f64 * of_layer[device], Reverse(stage))
            };
            let least = |a: &(f64, f64, Reverse<usize>), b: &(f64, f64, Reverse<usize>)| {
                a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2))
            };
            owned[device].iter().filter(|stage| may(stage)).map(key).min_by(least)
        };
        let mut nexts: Vec<_> = (0..held.len()).map(|device| next(device, &counts, &held)).collect();
        for _ in counts.iter().sum::<usize>()..layers {
            let lightest = nexts.iter().flatten().min_by(|a, b| a.0.total_cmp(&b.0))?;
            let Reverse(stage) = lightest.2;
            counts[stage] += 1;
            holders[stage].iter().for_each(|&device| held[device as usize] += 1);
            for &device in &holders[stage] {
                let mut owners: Vec<u32> =
                    placement.stages_of(device).map(|stage| holders[stage as usize][0]).collect();
                owners.dedup();
                owners.iter().for_each(|&owner| nexts[owner as usize] = next(owner as usize, &counts, &held));
            }
        }
        Some(if self.is_even { counts } else { self.shifted(placement, counts, most) })
    }

    /// Moves single layers between stages while that makes the busiest devices lighter.
    fn shifted(&self, placement: &Placement, mut counts: Vec<usize>, most: &[usize]) -> Vec<usize> {
        let stages = counts.len();
        let least = least_layers(stages);
        let mut best = self.loads(placement, &counts);
        // each round shortens the sorted loads, so it ends; the limit bounds the time
        for _ in 0..self.usual.layers.len() {
            let mut next = None;
            for (from, to) in (0..stages).flat_map(|from| (0..stages).map(move |to| (from, to))) {
                if from == to || counts[from] <= least[from] {
                    continue;
                }
                counts[from] -= 1;
                counts[to] += 1;
                let fits = (0..placement.devices()).zip(most).all(|(device, &most)| {
                    placement.held_by(device).iter().map(|chunk| counts[chunk.stage as usize]).sum::<usize>() <= most
                });
                let loads = self.loads(placement, &counts);
                if fits && is_lighter(&loads, next.as_ref().map_or(&best, |(loads, ..): &(Vec<f64>, _, _)| loads)) {
                    next = Some((loads, from, to));
                }
                counts[from] += 1;
                counts[to] -= 1;
            }
            let Some((loads, from, to)) = next else { break };
            best = loads;
            counts[from] -= 1;
            counts[to] += 1;
        }
        counts
    }

    /// Returns the time per micro-batch of each device, the longest first.
    fn loads(&self, placement: &Placement, counts: &[usize]) -> Vec<f64> {
        let mut ends = Vec::with_capacity(counts.len());
        let mut end = 0;
        for count in counts {
            end += count;
            ends.push(end);
        }
        let of = |device: u32| {
            let items = self.on(device);
            let of_stage = |chunk: &Chunk| {
                let stage = chunk.stage as usize;
                let own = &items.layers[ends[stage] - counts[stage]..ends[stage]];
                total(items.ends(stage, counts.len())) + own.iter().map(|times| total(*times)).sum::<f64>()
            };
            placement.held_by(device).iter().map(of_stage).sum::<f64>()
        };
        let mut loads: Vec<f64> = (0..placement.devices()).map(of).collect();
        loads.sort_by(|a, b| b.total_cmp(a));
        loads
    }
}

/// Returns whether the first load that differs is smaller, beyond rounding.
fn is_lighter(one: &[f64], other: &[f64]) -> bool {
    let differs = one.iter().zip(other).find(|(one, other)| (*one - *other).abs() > 1e-9 * other.abs());
    differs.is_some_and(|(one, other)| one < other)
}

/// Returns the fewest layers of each stage: only the first and the last may have none.
fn least_layers(stages: usize) -> Vec<usize> {
    (0..stages).map(|stage| usize::from(stage > 0 && stage + 1 < stages)).collect()
}

/// Returns the devices that hold a stage, one per direction.
fn holders(placement: &Placement, stage: u32) -> Vec<u32> {
    let mut all: Vec<u32> =
        (0..placement.directions()).map(|direction| placement.device_of_stage(stage, direction)).collect();
    all.sort_unstable();
    all
}

/// What bounds a device's time whatever its layers, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct DeviceBound {
    /// Time before its first forward may start, and after its last backward.
    path: [f64; 2],
    /// Work without layers, and messages that block the device.
    fixed: f64,
    /// Fewest layers, and the least time of one in all micro-batches.
    least: usize,
    layer: f64,
}

impl Analytic {
    /// Returns the times of what stages share; of layers that are recomputed only in part, as if they were not.
    pub fn split_times(&self, splits: bool) -> SplitTimes {
        let usual = self.item_times(splits);
        let others = self.others.iter().map(|(&device, own)| (device, own.item_times(splits))).collect();
        let is_even = usual.layers.windows(2).all(|pair| pair[0] == pair[1]);
        let whole = self.spec.split(1, None).unwrap_or_default();
        let parameters = self.rank_parameters(whole.iter().collect()).map(|(parameters, _)| parameters);
        let parts = self.spec.parts.iter().zip(self.kept_passes());
        let backward = parts.map(|(part, passes)| part.count as f64 * passes.backward.total()).sum();
        SplitTimes { usual, others, is_even, splits, parameters, backward }
    }

    /// Returns the passes of each part, of layers that are not recomputed if only some are.
    fn kept_passes(&self) -> impl Iterator<Item = &Passes> {
        self.passes.iter().enumerate().map(|(number, passes)| self.kept.get(number).unwrap_or(passes))
    }

    fn item_times(&self, splits: bool) -> ItemTimes {
        let layers = self.spec.outline().layers();
        let Ok(stages) = self.spec.split(3, Some(&[0, layers, 0])) else { return ItemTimes::default() };
        let [first, inner, last] = &stages[..] else { return ItemTimes::default() };
        let of = |passes: &Passes| {
            let backward = match splits {
                true => passes.input.total() + passes.split_weights().total(),
                false => passes.backward.total(),
            };
            [passes.forward.total() * 1e9, backward * 1e9]
        };
        let of_part: Vec<Times> = self.kept_passes().map(of).collect();
        let of_stage = |stage: &Stage| {
            let held = self.spec.parts.iter().zip(&of_part).map(|(part, times)| (stage.count(part.name) as f64, times));
            held.fold([0.0; 2], |sum, (count, times)| [sum[0] + count * times[0], sum[1] + count * times[1]])
        };
        let layers: Vec<Times> = self.spec.layers_of(inner).map(|part| of_part[part]).collect();
        let least = |pass: usize| layers.iter().map(|times| times[pass]).fold(f64::INFINITY, f64::min);
        let (shortest, all) = ([0, 1].map(least), layers.iter().map(|times| total(*times)).sum());
        ItemTimes { first: of_stage(first), layers, last: of_stage(last), shortest, all }
    }

    /// Returns a lower bound, in nanoseconds, of the time of the pipeline with every order on `placement` and every split of the layers,
    /// and of the mean of the devices' times until their last backward.
    ///
    /// Each device has its path to the first forward and from the last backward, with one layer per inner stage; the layers fill the
    /// devices like water. With one stage per device, layers also delay the devices after theirs: a weighted mean of the devices bounds
    /// the longest, and the weights make every layer count the same wherever it is.
    pub fn least_pipeline(&self, times: &SplitTimes, placement: &Placement) -> [f64; 2] {
        let splits = times.splits;
        let overlaps = self.machine.stack.step_overlaps > 0.0 && splits;
        let devices = self.device_bounds(times, placement, overlaps);
        let micro = f64::from(self.layout.micro);
        let p = devices.len() as f64;
        let all = (0..placement.devices()).map(|device| times.on(device).all);
        let work = micro * all.fold(f64::INFINITY, f64::min);
        let start = |device: &DeviceBound| device.path[0] + device.path[1] + device.fixed;
        let mut pipeline = filled(&devices.iter().map(start).collect::<Vec<_>>(), work);
        let is_plain = placement.directions() == 1 && times.others.is_empty();
        if placement.directions() == 1 {
            pipeline = pipeline.max(placed(&devices, times.usual.layers.len()));
        }
        if is_plain && placement.chunks() == 1 {
            pipeline = pipeline.max(delayed(&devices, times, micro, splits, overlaps));
        }
        let mean = devices.iter().map(|device| device.path[0] + device.fixed).sum::<f64>() / p + work / p;
        [pipeline, mean]
    }

    /// Returns a lower bound, in seconds, of the iteration time of every order on `placement` and every split of the layers, as
    /// [`Analytic::least_iteration`] of one. `pipeline` is [`Analytic::least_pipeline`], `exchanged` is [`Analytic::least_exchange`], and
    /// `stages` any split.
    pub fn least_of_splits(
        &self,
        [pipeline, mean]: [f64; 2],
        exchanged: [f64; 2],
        times: &SplitTimes,
        placement: &Placement,
        stages: &[Stage],
    ) -> f64 {
        let stack = &self.machine.stack;
        // the mean device bounds the longest
        let [exchange, optimizer] = self.least_after(times, placement, exchanged);
        // every op is rounded to nanoseconds
        let rounding = f64::from(2 * (self.layout.micro + 1)) * f64::from(placement.stages() + placement.devices());
        let lasted = pipeline.max(mean + 1e9 * exchange) - rounding;
        let step = lasted * 1e-9 + optimizer + self.tied_exchange(placement, stages) + stack.host_step_ms * 1e-3;
        step * (1.0 + stack.straggler_share * self.doublings()) * (1.0 - 1e-9)
    }

    fn device_bounds(&self, times: &SplitTimes, placement: &Placement, overlaps: bool) -> Vec<DeviceBound> {
        let stages = placement.stages() as usize;
        let blocked = self.blocked(placement) as f64;
        let ways: Vec<[Vec<f64>; 2]> =
            (0..placement.directions()).map(|direction| self.least_ways(times, placement, direction)).collect();
        let of = |device: u32| {
            let items = times.on(device);
            let mut bound = DeviceBound { path: [f64::INFINITY; 2], ..DeviceBound::default() };
            let mut leaving = 0.0;
            for chunk in placement.held_by(device) {
                let (stage, own) = (chunk.stage as usize, &ways[chunk.direction as usize]);
                let micro = placement.microbatches_of(chunk.direction, self.layout.micro).len() as f64;
                bound.path = [0, 1].map(|way| bound.path[way].min(own[way][stage]));
                bound.fixed += micro * total(items.ends(stage, stages));
                bound.least += least_layers(stages)[stage];
                bound.layer = micro * total(items.shortest);
                let sends = [Kind::F, Kind::B].map(|kind| Op::new(kind, chunk.stage, 0).in_direction(chunk.direction));
                leaving += micro * sends.into_iter().filter(|op| placement.leaves_device(*op)).count() as f64;
            }
            bound.fixed += (leaving - 1.0).max(0.0) * blocked;
            if times.splits {
                bound.path[1] = 0.0;
            }
            if overlaps {
                bound.path[0] = 0.0;
            }
            bound
        };
        (0..placement.devices()).map(of).collect()
    }

    /// Returns, by stage of one direction, the least time until its first forward may start, and from the end of its last backward.
    fn least_ways(&self, times: &SplitTimes, placement: &Placement, direction: u32) -> [Vec<f64>; 2] {
        let stages = placement.stages() as usize;
        let least = least_layers(stages);
        let (mut down, mut up) = (vec![0.0; stages], vec![0.0; stages]);
        let of = |stage: usize, pass: usize| {
            let items = times.on(placement.device_of_stage(stage as u32, direction));
            items.ends(stage, stages)[pass] + if least[stage] > 0 { items.shortest[pass] } else { 0.0 }
        };
        for stage in 1..stages {
            let send = |kind, from: usize| {
                let op = Op::new(kind, from as u32, 0).in_direction(direction);
                if placement.leaves_device(op) { self.arrival(placement, op) * 1e9 } else { 0.0 }
            };
            down[stage] = down[stage - 1] + of(stage - 1, 0) + send(Kind::F, stage - 1);
            up[stage] = up[stage - 1] + of(stage - 1, 1) + send(Kind::B, stage);
        }
        [down, up]
    }

    /// Returns lower bounds of the devices' mean exchange and of the longest optimizer step, in seconds, if each stage is on `copies` of
    /// `devices` devices.
    pub fn least_exchange(&self, times: &SplitTimes, copies: u32, devices: u32) -> [f64; 2] {
        if !self.others.is_empty() {
            return [0.0; 2];
        }
        let share = f64::from(copies) / f64::from(devices);
        let [dense, experts] = times.parameters;
        let [of_dense, of_experts] = self.layout.replicas();
        let groups = [(dense, of_dense), (experts, of_experts)];
        // what one parameter takes is latency, at least that of the pieces that the mean does not fill
        let exchange =
            |(parameters, replicas)| self.exchange(parameters * share, replicas) - self.exchange(1.0, replicas);
        let exchange = groups.iter().map(|&group| exchange(group).max(0.0)).sum::<f64>();
        let updated = groups.map(|(parameters, replicas)| {
            let parameters = parameters * share;
            if self.layout.zero == Zero::None { parameters } else { parameters / f64::from(replicas.shard) }
        });
        [exchange, self.update(self, updated.iter().sum())]
    }

    /// Returns lower bounds of the devices' mean exposed exchange and of the longest optimizer step, in seconds.
    fn least_after(&self, times: &SplitTimes, placement: &Placement, [exchange, update]: [f64; 2]) -> [f64; 2] {
        if !self.others.is_empty() {
            return [0.0; 2];
        }
        let share = f64::from(placement.directions()) / f64::from(placement.devices());
        let chunks = self.chunks(placement);
        let window = self.window(times.backward * share, placement);
        let exposed = (exchange - window).max(exchange * self.machine.stack.data_exposed / chunks);
        [exposed, update]
    }
}

/// Returns the level up to which `work` fills devices that are full up to `starts`.
fn filled(starts: &[f64], work: f64) -> f64 {
    let mut sorted = starts.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (mut sum, mut level) = (work, 0.0_f64);
    for (number, start) in (1..).zip(&sorted) {
        sum += start;
        level = sum / f64::from(number);
        if sorted.get(number as usize).is_none_or(|next| *next >= level) {
            break;
        }
    }
    sorted.last().map_or(level, |highest| highest.max(level))
}

/// Returns the least time of the busiest device, of `layers` whole layers that all take as long as the shortest.
fn placed(devices: &[DeviceBound], layers: usize) -> f64 {
    let mut held: Vec<usize> = devices.iter().map(|device| device.least).collect();
    let time = |device: usize, more: usize, held: &[usize]| {
        let DeviceBound { path, fixed, layer, .. } = devices[device];
        path[0] + path[1] + fixed + (held[device] + more) as f64 * layer
    };
    for _ in held.iter().sum::<usize>()..layers {
        let least = (0..devices.len()).min_by(|&a, &b| time(a, 1, &held).total_cmp(&time(b, 1, &held)));
        least.into_iter().for_each(|device| held[device] += 1);
    }
    (0..devices.len()).map(|device| time(device, 0, &held)).fold(0.0, f64::max)
}

/// Returns a weighted mean of the devices' times with one stage each, where layers delay later devices.
fn delayed(devices: &[DeviceBound], times: &SplitTimes, micro: f64, splits: bool, overlaps: bool) -> f64 {
    // share of a layer's time that delays each later device
    let forward = times.usual.layers.iter().map(|own| own[0] / total(*own)).fold(1.0, f64::min);
    let delay = if overlaps {
        0.0
    } else if splits {
        forward
    } else {
        1.0
    };
    let (mut weights, mut later) = (vec![1.0; devices.len()], 0.0);
    for weight in weights.iter_mut().rev() {
        *weight = 1.0 - delay * later / micro;
        later += *weight;
    }
    if weights.iter().any(|weight| *weight < 0.0) {
        return 0.0;
    }
    // paths contain one layer of each inner stage already
    let starts =
        devices.iter().zip(&weights).map(|(device, weight)| weight * (device.path[0] + device.path[1] + device.fixed));
    let shortest = times.usual.shortest;
    let counted: f64 =
        weights.iter().enumerate().map(|(device, weight)| weight * device.saturating_sub(1) as f64).sum();
    let once = if overlaps {
        0.0
    } else if splits {
        shortest[0]
    } else {
        total(shortest)
    };
    (starts.sum::<f64>() - counted * once + micro * times.usual.all) / later
}
