//! Parameters on a GPU.

use super::Cuda;
use super::batch::DOUBLE;
use super::operation::{Operations, Updated};
use crate::compute::{AdamW, Merge, Quantity, Side, Squared, Store};
use anyhow::{Context as _, Result, ensure};
use cpu_kernels::optimizer::overlap;
use pipesim_gpu::api::{Address, Buffer, Pinned};
use pipesim_gpu::kernel::Precision;
use pipesim_gpu::nccl::Numbers;
use std::ops::Range;

/// Alignment of tensors in elements (256 bytes in bfloat16), so that products use the same algorithm and give the same bits wherever a
/// tensor is. Gaps stay zero.
const ALIGNMENT: usize = 128;

/// Some tensors: master values, gradients and moments in float32, one row each, and with bfloat16 a copy of the values for computing
/// activations.
pub struct Group {
    /// First element and number of elements of each tensor.
    tensors: Vec<(usize, usize)>,
    count: usize,
    /// The elements that this worker updates: all, or one of equal slices.
    slice: Range<usize>,
    values: Buffer,
    copy: Option<Buffer>,
    gradients: Buffer,
    /// The side of the gradients that belongs to the part that shares the tensors, if one does.
    shared_gradients: Option<Buffer>,
    /// First moments of the slice.
    first_moments: Buffer,
    /// Second moments of the slice.
    second_moments: Buffer,
    saved: Option<[Buffer; 3]>,
}

/// Number of elements of a tensor in a row, including the gap behind it.
pub(super) fn padded(length: usize) -> usize {
    length.next_multiple_of(ALIGNMENT)
}

/// Number of elements of a row of tensors with `length` elements, gaps included, that `members` workers update in equal slices.
pub(super) fn row_length(length: usize, members: usize) -> usize {
    length.next_multiple_of(ALIGNMENT * members)
}

impl Group {
    /// Address of a tensor's values in the activations' precision.
    pub(super) fn tensor(&self, index: usize) -> Address {
        let start = self.tensors[index].0;
        match &self.copy {
            Some(copy) => copy.address().offset(start * 2),
            None => element(&self.values, start),
        }
    }

    /// Number of elements of a tensor.
    pub(super) fn length(&self, index: usize) -> usize {
        self.tensors[index].1
    }

    /// One side of the gradients, gaps included.
    pub fn gradients(&self, side: Side) -> Numbers {
        Numbers { address: self.side(side), count: self.count, precision: Precision::F32 }
    }

    /// The values, gaps included.
    pub fn values(&self) -> Numbers {
        Numbers { address: self.values.address(), count: self.count, precision: Precision::F32 }
    }

    /// Returns the contiguous runs of the slice that hold a range of the group's elements; `None`: all. Gaps between tensors, which
    /// are zero, join runs.
    fn runs(&self, elements: Option<&[Range<usize>]>) -> Vec<Range<usize>> {
        let Some(elements) = elements else { return vec![self.slice.clone()] };
        let mut runs: Vec<Range<usize>> = Vec::new();
        let mut first = 0;
        for &(start, length) in &self.tensors {
            for range in elements {
                let (from, to) = (range.start.max(first), range.end.min(first + length));
                if from >= to {
                    continue;
                }
                let end = if to == first + length { start + padded(length) } else { start + to - first };
                let run = overlap(&(start + from - first..end), &self.slice);
                match runs.last_mut().filter(|last| last.end == run.start) {
                    _ if run.is_empty() => {}
                    Some(last) => last.end = run.end,
                    None => runs.push(run),
                }
            }
            first += length;
        }
        runs
    }

    /// Address of one side of a tensor's gradient.
    pub(super) fn gradient(&self, index: usize, side: Side) -> Address {
        self.side(side).offset(self.tensors[index].0 * size_of::<f32>())
    }

    /// Address of one side of the gradients, or null.
    fn side(&self, side: Side) -> Address {
        match side {
            Side::Own => self.gradients.address(),
            Side::Shared => self.shared_gradients.as_ref().map_or(Address::NULL, Buffer::address),
        }
    }

    /// Bytes of its gradients.
    fn bytes(&self) -> usize {
        self.count * size_of::<f32>()
    }

    /// Bytes of its values, gradients and moments.
    pub fn bytes_held(&self) -> usize {
        let rows = [&self.values, &self.gradients, &self.first_moments, &self.second_moments];
        rows.into_iter().chain(&self.copy).chain(&self.shared_gradients).map(Buffer::bytes).sum()
    }

    fn row(&self, what: Quantity) -> &Buffer {
        match what {
            Quantity::Values => &self.values,
            Quantity::Gradients => &self.gradients,
            Quantity::FirstMoments => &self.first_moments,
            Quantity::SecondMoments => &self.second_moments,
        }
    }

    /// Returns the elements of a tensor whose `what` is here, and their place in its row.
    fn held(&self, tensor: usize, what: Quantity) -> (Range<usize>, Address) {
        let (start, length) = self.tensors[tensor];
        let here = match what {
            Quantity::Values | Quantity::Gradients => start..start + length,
            Quantity::FirstMoments | Quantity::SecondMoments => overlap(&(start..start + length), &self.slice),
        };
        let first = if matches!(what, Quantity::Values | Quantity::Gradients) { 0 } else { self.slice.start };
        (here.start - start..here.end - start, element(self.row(what), here.start.saturating_sub(first)))
    }

    /// Enqueues updating the copy of the values.
    pub(super) fn refresh(&self, operations: &Operations) -> Result<()> {
        match &self.copy {
            Some(copy) => operations.cast(copy.address(), self.values.address(), self.count),
            None => Ok(()),
        }
    }
}

impl Store for Cuda {
    type Group = Group;
    type Input<'a> = Address;
    type Output<'a> = Address;

    fn enter(&mut self) -> Result<()> {
        Ok(self.operations.gpu.make_current()?)
    }

    /// Waits for the copies.
    fn group(&mut self, tensors: &[&[f32]], is_shared: bool) -> Result<Group> {
        let operations = &self.operations;
        let mut count = 0;
        let place = |tensor: &&[f32]| {
            let start = count;
            count += padded(tensor.len());
            (start, tensor.len())
        };
        let placed: Vec<(usize, usize)> = tensors.iter().map(place).collect();
        let share = self.workload.optimizer;
        let count = row_length(count, share.members);
        let slice = share.slice(count);
        let moments = slice.len();
        let row = |count: usize| -> Result<Buffer> {
            let buffer = Buffer::new(operations.gpu.context(), count * size_of::<f32>())?;
            operations.gpu.compute.clear(buffer.address(), buffer.bytes())?;
            Ok(buffer)
        };
        let copy = match operations.precision {
            Precision::F32 => None,
            Precision::Bf16 => Some(Buffer::new(operations.gpu.context(), count * operations.precision.bytes())?),
        };
        let group = Group {
            count,
            slice,
            values: row(count)?,
            copy,
            gradients: row(count)?,
            shared_gradients: is_shared.then(|| row(count)).transpose()?,
            first_moments: row(moments)?,
            second_moments: row(moments)?,
            saved: None,
            tensors: placed,
        };
        for (&(start, _), values) in group.tensors.iter().zip(tensors) {
            operations.upload(element(&group.values, start), values)?;
        }
        group.refresh(operations)?;
        Ok(group)
    }

    fn zero(&mut self, group: &mut Group) -> Result<()> {
        for row in [&group.gradients].into_iter().chain(&group.shared_gradients) {
            self.operations.gpu.compute.clear(row.address(), row.bytes())?;
        }
        self.operations.gpu.make_room()
    }

    fn square(&mut self, groups: &[Squared<Group>]) -> Result<()> {
        let step = &mut self.step;
        for (index, &Squared { group, only }) in groups.iter().enumerate() {
            let runs = group.runs(only);
            let places = [step.norms.address().offset(index * DOUBLE), step.partial.address()];
            let gradients = [group.side(Side::Own), group.side(Side::Shared)];
            self.operations.squared_norm(places, gradients, &runs)?;
            self.operations.gpu.make_room()?;
        }
        let (stream, bytes) = (&self.operations.gpu.compute, groups.len() * DOUBLE);
        if bytes > 0 {
            stream.download(&step.host_norms, 0..bytes, step.norms.address())?;
        }
        stream.record(&step.norms_done)?;
        step.squared = groups.len();
        Ok(())
    }

    fn squares(&mut self) -> Result<Vec<f64>> {
        self.step.norms_done.synchronize()?;
        let mut norms = vec![0.0; self.step.squared];
        self.step.host_norms.read(0, &mut norms);
        Ok(norms)
    }

    fn update(&mut self, groups: &mut [Group], step: u32, hyper: &AdamW, scale: f32) -> Result<()> {
        let scale = if scale == 1.0 {
            Address::NULL
        } else {
            self.operations.gpu.compute.set(self.step.scale.address(), scale)?;
            self.step.scale.address()
        };
        for group in groups {
            let start = group.slice.start;
            let of_slice = |row: Address| if row == Address::NULL { row } else { row.offset(start * size_of::<f32>()) };
            let what = Updated {
                values: of_slice(group.values.address()),
                copy: group.copy.as_ref().map_or(Address::NULL, |copy| copy.address().offset(2 * start)),
                gradients: of_slice(group.side(Side::Own)),
                other: of_slice(group.side(Side::Shared)),
                first_moments: group.first_moments.address(),
                second_moments: group.second_moments.address(),
                count: group.slice.len(),
            };
            self.operations.adamw_update(&what, scale, step, hyper)?;
            self.operations.gpu.make_room()?;
        }
        Ok(())
    }

    /// The first call allocates.
    fn save(&mut self, group: &mut Group) -> Result<()> {
        let operations = &self.operations;
        if group.saved.is_none() {
            let row = |of: &Buffer| Buffer::new(operations.gpu.context(), of.bytes()).context("remembering parameters");
            group.saved = Some([row(&group.values)?, row(&group.first_moments)?, row(&group.second_moments)?]);
        }
        let rows = [&group.values, &group.first_moments, &group.second_moments];
        for (row, saved) in rows.into_iter().zip(group.saved.iter().flatten()) {
            operations.gpu.compute.copy(saved.address(), row.address(), row.bytes())?;
        }
        operations.gpu.make_room()
    }

    fn restore(&mut self, group: &mut Group) -> Result<bool> {
        let Some(saved) = &group.saved else { return Ok(false) };
        let rows = [&group.values, &group.first_moments, &group.second_moments];
        for (row, saved) in rows.into_iter().zip(saved) {
            self.operations.gpu.compute.copy(row.address(), saved.address(), row.bytes())?;
        }
        group.refresh(&self.operations)?;
        self.operations.gpu.make_room()?;
        Ok(true)
    }

    fn export(&mut self, group: &Group, tensor: usize, what: Quantity, into: &mut [f32]) -> Result<()> {
        let (elements, place) = group.held(tensor, what);
        self.operations.download(&mut into[elements], place)?;
        if what == Quantity::Gradients && group.shared_gradients.is_some() {
            let mut shared = vec![0.0; into.len()];
            self.operations.download(&mut shared, group.gradient(tensor, Side::Shared))?;
            into.iter_mut().zip(shared).for_each(|(gradient, shared)| *gradient += shared);
        }
        Ok(())
    }

    fn import(&mut self, group: &mut Group, tensor: usize, what: Quantity, from: &[f32]) -> Result<()> {
        ensure!(
            what != Quantity::Gradients,
            "expected values or moments to import, found gradients: steps compute those"
        );
        let (elements, place) = group.held(tensor, what);
        self.operations.upload(place, &from[elements])?;
        if what == Quantity::Values { group.refresh(&self.operations) } else { Ok(()) }
    }

    fn copy_gradients(&mut self, group: &Group, side: Side, to: &mut Address) -> Result<()> {
        self.operations.gpu.compute.copy(*to, group.side(side), group.bytes())?;
        *to = to.offset(group.bytes());
        Ok(())
    }

    fn merge_gradients(&mut self, group: &mut Group, side: Side, from: &mut Address, merge: Merge) -> Result<()> {
        match merge {
            Merge::Replace => self.operations.gpu.compute.copy(group.side(side), *from, group.bytes())?,
            Merge::Add => self.operations.add(group.side(side), *from, group.count)?,
        }
        *from = from.offset(group.bytes());
        Ok(())
    }
}

fn element(row: &Buffer, index: usize) -> Address {
    row.address().offset(index * size_of::<f32>())
}

/// Number of elements copied at a time between device and host.
const CHUNK: usize = 4 << 20;

impl Operations {
    /// Copies to the device and waits.
    pub(super) fn upload(&self, to: Address, values: &[f32]) -> Result<()> {
        let mut pinned = Pinned::new(self.gpu.context(), values.len().min(CHUNK) * size_of::<f32>())?;
        for (number, chunk) in values.chunks(CHUNK).enumerate() {
            pinned.write(0, chunk);
            let to = to.offset(number * CHUNK * size_of::<f32>());
            self.gpu.compute.upload(to, &pinned, 0..size_of_val(chunk))?;
            self.gpu.compute.synchronize()?;
        }
        Ok(())
    }

    /// Copies from the device and waits.
    pub(super) fn download(&self, values: &mut [f32], from: Address) -> Result<()> {
        let pinned = Pinned::new(self.gpu.context(), values.len().min(CHUNK) * size_of::<f32>())?;
        for (number, chunk) in values.chunks_mut(CHUNK).enumerate() {
            let from = from.offset(number * CHUNK * size_of::<f32>());
            self.gpu.compute.download(&pinned, 0..size_of_val(chunk), from)?;
            self.gpu.compute.synchronize()?;
            pinned.read(0, chunk);
        }
        Ok(())
    }
}
