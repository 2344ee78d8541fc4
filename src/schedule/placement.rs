//! Placements: which device runs which stage for which micro-batches.

use crate::op::{Kind, Op};
use std::ops::Range;

/// Why a placement is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // each text names its fields
pub enum PlacementError {
    /// Two directions of different lengths.
    #[error("both directions run through all stages; direction 0 has {0}, direction 1 {1}")]
    Lengths(usize, usize),
    /// Both copies of a stage on one device.
    #[error("stage {stage} has both its directions on device {device}; put them on two devices")]
    OneDevice { stage: usize, device: u32 },
    /// A stage on a device outside the range.
    #[error("placement puts stage {stage} on device {device}, but there are {devices} devices")]
    NoDevice { stage: u32, device: u32, devices: u32 },
    /// Devices that hold different numbers of stages, or none: device 0 and another one.
    #[error("every device must hold the same number of stages; device 0 holds {first}, device {device} holds {other}")]
    Unbalanced { first: usize, device: usize, other: usize },
    /// Two directions on an odd number of devices.
    #[error("a bidirectional placement needs an even number of devices, found {0}")]
    Odd(u32),
}

/// Which device holds which stage. In a bidirectional placement two devices hold each stage: one runs it for the micro-batches
/// of direction 0, the other for the micro-batches of direction 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    name: String,
    devices: u32,
    stages: u32,
    /// By (direction, stage).
    device_of: Vec<u32>,
    /// By device: its chunks in order.
    chunks_of: Vec<Vec<Chunk>>,
    /// By (direction, stage): the number of that chunk on its device.
    number_of: Vec<u32>,
}

/// One chunk of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chunk {
    /// Number of the stage, from 0 in model order.
    pub stage: u32,
    /// Direction of the micro-batches that it runs.
    pub direction: u32,
}

impl Placement {
    /// Creates the placement with stage `s` on device `device_of[s]`; chunk numbers follow stage order on each device.
    ///
    /// # Errors
    /// A device outside 0..devices, or devices that hold different numbers of stages.
    pub fn new(name: &str, devices: u32, device_of: Vec<u32>) -> Result<Placement, PlacementError> {
        let stages = device_of.len() as u32;
        Placement::with_directions(name, devices, stages, device_of)
    }

    /// Creates the placement that runs stage `s` for micro-batches of direction `d` on device `device_of[d][s]`.
    ///
    /// # Errors
    /// As [`Placement::new`]; a stage that has both its directions on one device, or directions that differ in length.
    pub fn two_directions(name: &str, devices: u32, device_of: [Vec<u32>; 2]) -> Result<Placement, PlacementError> {
        let [one, other] = device_of;
        if one.len() != other.len() {
            return Err(PlacementError::Lengths(one.len(), other.len()));
        }
        if let Some(stage) = one.iter().zip(&other).position(|(a, b)| a == b) {
            return Err(PlacementError::OneDevice { stage, device: one[stage] });
        }
        let stages = one.len() as u32;
        Placement::with_directions(name, devices, stages, [one, other].concat())
    }

    fn with_directions(
        name: &str,
        devices: u32,
        stages: u32,
        device_of: Vec<u32>,
    ) -> Result<Placement, PlacementError> {
        let mut chunks_of = vec![Vec::new(); devices as usize];
        let mut number_of = Vec::with_capacity(device_of.len());
        for (place, &device) in device_of.iter().enumerate() {
            let (stage, direction) = (place as u32 % stages, place as u32 / stages);
            let missing = PlacementError::NoDevice { stage, device, devices };
            let chunks = chunks_of.get_mut(device as usize).ok_or(missing)?;
            number_of.push(chunks.len() as u32);
            chunks.push(Chunk { stage, direction });
        }
        let first = chunks_of.first().map_or(0, Vec::len);
        match chunks_of.iter().position(|chunks| chunks.len() != first || first == 0) {
            Some(device) => Err(PlacementError::Unbalanced { first, device, other: chunks_of[device].len() }),
            None => Ok(Placement { name: name.to_string(), devices, stages, device_of, chunks_of, number_of }),
        }
    }

    /// Creates the placement with one stage per device.
    pub fn linear(devices: u32) -> Placement {
        Placement::looped("linear", devices, 1)
    }

    /// Creates the placement with stage s on device s mod p (Narayanan et al. 2021, interleaved 1F1B).
    pub fn looped(name: &str, devices: u32, chunks: u32) -> Placement {
        let device_of = (0..devices * chunks).map(|stage| stage % devices).collect();
        Placement::new(name, devices, device_of).expect("a loop is balanced")
    }

    /// Creates the placement that runs down the devices and up again, `chunks` times: stages r and 2p-1-r on device r for two chunks
    /// (Qi et al., arXiv 2401.10241 section 6), a zigzag for more (Liu et al. 2023, Hanayo).
    pub fn zigzag(name: &str, devices: u32, chunks: u32) -> Placement {
        let device_of = (0..devices * chunks)
            .map(|stage| {
                let (wave, step) = (stage / devices, stage % devices);
                if wave % 2 == 0 { step } else { devices - 1 - step }
            })
            .collect();
        Placement::new(name, devices, device_of).expect("a zigzag is balanced")
    }

    /// Creates the placement with stage s on device s for one direction and on device p-1-s for the other (Li & Hoefler 2021,
    /// Chimera; DeepSeek's DualPipe); with v chunks one direction loops from device 0 up, the other from device p-1 down.
    ///
    /// # Errors
    /// p is odd: the middle device would hold both copies of a stage.
    pub fn bidirectional(devices: u32, chunks: u32) -> Result<Placement, PlacementError> {
        if devices % 2 == 1 {
            return Err(PlacementError::Odd(devices));
        }
        let down: Vec<u32> = (0..devices * chunks).map(|stage| stage % devices).collect();
        let up = down.iter().map(|device| devices - 1 - device).collect();
        Placement::two_directions("bidirectional", devices, [down, up])
    }

    /// Returns its name: `linear`, `loop`, `V`, ...
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns p.
    pub fn devices(&self) -> u32 {
        self.devices
    }

    /// Returns v, the stages per device and direction.
    pub fn chunks(&self) -> u32 {
        self.stages / self.devices
    }

    /// Returns the number of directions of micro-batches: 1 or 2.
    pub fn directions(&self) -> u32 {
        self.device_of.len() as u32 / self.stages
    }

    /// Returns S = p * v.
    pub fn stages(&self) -> u32 {
        self.stages
    }

    /// Returns the device that runs `op`.
    pub fn device_of(&self, op: Op) -> u32 {
        self.device_of_stage(op.stage(), op.direction())
    }

    /// Returns the device that holds `stage` for micro-batches of `direction`.
    pub fn device_of_stage(&self, stage: u32, direction: u32) -> u32 {
        self.device_of[(direction * self.stages + stage) as usize]
    }

    /// Returns the chunk of `device` that runs `op`, or `None` if another device or none does.
    pub fn chunk_of(&self, device: u32, op: Op) -> Option<usize> {
        let known = op.stage() < self.stages && op.direction() < self.directions();
        (known && self.device_of(op) == device)
            .then(|| self.number_of[(op.direction() * self.stages + op.stage()) as usize] as usize)
    }

    /// Returns the chunks of `device`.
    pub fn held_by(&self, device: u32) -> &[Chunk] {
        &self.chunks_of[device as usize]
    }

    /// Returns the stages of `device`, by chunk.
    pub fn stages_of(&self, device: u32) -> impl Iterator<Item = u32> {
        self.held_by(device).iter().map(|chunk| chunk.stage)
    }

    /// Returns the micro-batches of `direction`, out of `microbatches`: the first half, rounded up, runs in direction 0.
    pub fn microbatches_of(&self, direction: u32, microbatches: u32) -> Range<u32> {
        match (self.directions(), direction) {
            (1, _) => 0..microbatches,
            (_, 0) => 0..microbatches.div_ceil(2),
            _ => microbatches.div_ceil(2)..microbatches,
        }
    }

    /// Returns one op, of micro-batch 0, for every stage, direction and kind of [`Kind::COSTED`].
    pub fn op_kinds(&self) -> impl Iterator<Item = Op> {
        let kinds = |stage, direction| Kind::COSTED.map(|kind| Op::new(kind, stage, 0).in_direction(direction));
        (0..self.stages()).flat_map(move |stage| (0..self.directions()).flat_map(move |d| kinds(stage, d)))
    }

    /// Returns the length of tables that are indexed by [`Op::slot`].
    pub fn slots(&self) -> usize {
        self.stages as usize * Op::SLOTS_PER_STAGE
    }

    /// Returns the direction of `microbatch`, out of `microbatches`.
    pub fn direction_of(&self, microbatch: u32, microbatches: u32) -> u32 {
        u32::from(!self.microbatches_of(0, microbatches).contains(&microbatch))
    }

    /// Returns the device that makes the input of `op`, or `None` if it waits for no other stage.
    pub fn sender(&self, op: Op) -> Option<u32> {
        op.upstream(self.stages).map(|stage| self.device_of_stage(stage, op.direction()))
    }

    /// Returns the device that uses the output of `op`, or `None` if no other stage waits for it.
    pub fn receiver(&self, op: Op) -> Option<u32> {
        op.downstream(self.stages).map(|stage| self.device_of_stage(stage, op.direction()))
    }

    /// Whether the output of `op` goes to another device.
    pub fn leaves_device(&self, op: Op) -> bool {
        self.receiver(op).is_some_and(|receiver| receiver != self.device_of(op))
    }
}
