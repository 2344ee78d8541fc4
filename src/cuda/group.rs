//! Groups of parameters on a device, with their gradients and AdamW's moments.

use super::api::{Address, Buffer, Pinned};
use super::operation::{Operations, Updated};
use crate::model::{AdamW, Parameters, Quantity};
use anyhow::{Result, ensure};
use std::ops::Range;

/// Alignment of tensors in elements (256 bytes in bfloat16), so that products use the same algorithm and give the same bits wherever a
/// tensor is. Gaps stay zero.
const ALIGNMENT: usize = 128;

/// Some tensors of the model, or one layer's part of each: master values, gradients and moments in float32, one row each, and with
/// bfloat16 a copy of the values for computing activations.
pub(super) struct Group {
    /// Index among llm.c's tensors, first element here, number of elements.
    tensors: Vec<(usize, usize, usize)>,
    /// Index of the block in the model, if it is one.
    layer: Option<usize>,
    count: usize,
    values: Buffer,
    copy: Option<Buffer>,
    pub(super) gradients: Buffer,
    first_moments: Buffer,
    second_moments: Buffer,
    saved: Option<[Buffer; 3]>,
}

/// Number of elements of a tensor in a row, including the gap behind it.
pub(super) fn padded(length: usize) -> usize {
    length.next_multiple_of(ALIGNMENT)
}

impl Group {
    /// Allocates, and copies the values from `parameters`. Waits for the copies.
    pub(super) fn new(
        operations: &Operations,
        parameters: &Parameters,
        tensors: Range<usize>,
        layer: Option<usize>,
    ) -> Result<Group> {
        let mut placed = Vec::with_capacity(tensors.len());
        let mut count = 0;
        for tensor in tensors {
            let length = parameters.part(tensor, layer).len();
            placed.push((tensor, count, length));
            count += padded(length);
        }
        let row = || -> Result<Buffer> {
            let buffer = Buffer::new(operations.gpu.context(), count * size_of::<f32>())?;
            operations.gpu.compute.clear(buffer.address(), buffer.bytes())?;
            Ok(buffer)
        };
        let copy_bytes = count * operations.precision.bytes();
        let copy = match operations.precision {
            super::Precision::F32 => None,
            super::Precision::Bf16 => Some(Buffer::new(operations.gpu.context(), copy_bytes)?),
        };
        let group = Group {
            tensors: placed,
            layer,
            count,
            values: row()?,
            copy,
            gradients: row()?,
            first_moments: row()?,
            second_moments: row()?,
            saved: None,
        };
        for &(tensor, start, _) in &group.tensors {
            upload(operations, element(&group.values, start), parameters.part(tensor, layer))?;
        }
        group.refresh(operations)?;
        Ok(group)
    }

    /// Address of a tensor's values in the activations' precision, by its index in the group.
    pub(super) fn tensor(&self, index: usize) -> Address {
        let start = self.tensors[index].1;
        match &self.copy {
            Some(copy) => copy.address().offset(start * 2),
            None => element(&self.values, start),
        }
    }

    /// Address of a tensor's gradients, by its index in the group.
    pub(super) fn gradient(&self, index: usize) -> Address {
        element(&self.gradients, self.tensors[index].1)
    }

    /// Number of float32 in a row, including gaps.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Enqueues clearing the gradients.
    pub(super) fn clear_gradients(&self, operations: &Operations) -> Result<()> {
        Ok(operations.gpu.compute.clear(self.gradients.address(), self.gradients.bytes())?)
    }

    /// Enqueues one step of AdamW. `other` is a second part of the gradients, or null.
    pub(super) fn adamw(
        &self,
        operations: &Operations,
        other: Address,
        scale: Address,
        number: u32,
        hyper: &AdamW,
    ) -> Result<()> {
        let what = Updated {
            values: self.values.address(),
            copy: self.copy.as_ref().map_or(Address::NULL, Buffer::address),
            gradients: self.gradients.address(),
            other,
            first_moments: self.first_moments.address(),
            second_moments: self.second_moments.address(),
            count: self.count,
        };
        operations.adamw_update(&what, scale, number, hyper)
    }

    /// Enqueues saving values and moments.
    pub(super) fn save(&mut self, operations: &Operations) -> Result<()> {
        let rows = [&self.values, &self.first_moments, &self.second_moments];
        if self.saved.is_none() {
            let row = || Buffer::new(operations.gpu.context(), self.count * size_of::<f32>());
            self.saved = Some([row()?, row()?, row()?]);
        }
        for (row, saved) in rows.into_iter().zip(self.saved.iter().flatten()) {
            operations.gpu.compute.copy(saved.address(), row.address(), row.bytes())?;
        }
        Ok(())
    }

    /// Enqueues restoring saved values and moments. Returns false if none are saved.
    pub(super) fn restore(&self, operations: &Operations) -> Result<bool> {
        let Some(saved) = &self.saved else { return Ok(false) };
        let rows = [&self.values, &self.first_moments, &self.second_moments];
        for (row, saved) in rows.into_iter().zip(saved) {
            operations.gpu.compute.copy(row.address(), saved.address(), row.bytes())?;
        }
        self.refresh(operations)?;
        Ok(true)
    }

    fn row(&self, what: Quantity) -> &Buffer {
        match what {
            Quantity::Values => &self.values,
            Quantity::Gradients => &self.gradients,
            Quantity::FirstMoments => &self.first_moments,
            Quantity::SecondMoments => &self.second_moments,
        }
    }

    /// Copies a row from the tensors of the whole model. Waits for the copies.
    pub(super) fn import(&self, operations: &Operations, from: &Parameters, what: Quantity) -> Result<()> {
        ensure!(
            what != Quantity::Gradients,
            "expected values or moments to import, found gradients: steps compute those"
        );
        for &(tensor, start, _) in &self.tensors {
            upload(operations, element(self.row(what), start), from.part(tensor, self.layer))?;
        }
        if what == Quantity::Values { self.refresh(operations) } else { Ok(()) }
    }

    /// Copies a row into the tensors of the whole model. Waits.
    pub(super) fn export(&self, operations: &Operations, into: &mut Parameters, what: Quantity) -> Result<()> {
        let row = self.row(what);
        for &(tensor, start, _) in &self.tensors {
            download(operations, into.part_mut(tensor, self.layer), element(row, start))?;
        }
        Ok(())
    }

    /// Enqueues updating the copy of the values.
    fn refresh(&self, operations: &Operations) -> Result<()> {
        match &self.copy {
            Some(copy) => operations.cast(copy.address(), self.values.address(), self.count),
            None => Ok(()),
        }
    }
}

fn element(row: &Buffer, index: usize) -> Address {
    row.address().offset(index * size_of::<f32>())
}

/// Number of elements copied at a time between device and host.
const CHUNK: usize = 4 << 20;

/// Copies to the device and waits.
pub(super) fn upload(operations: &Operations, to: Address, values: &[f32]) -> Result<()> {
    let mut pinned = Pinned::new(operations.gpu.context(), values.len().min(CHUNK) * size_of::<f32>())?;
    for (number, chunk) in values.chunks(CHUNK).enumerate() {
        pinned.write(0, chunk);
        let to = to.offset(number * CHUNK * size_of::<f32>());
        operations.gpu.compute.upload(to, &pinned, 0..size_of_val(chunk))?;
        operations.gpu.compute.synchronize()?;
    }
    Ok(())
}

/// Copies from the device and waits.
pub(super) fn download(operations: &Operations, values: &mut [f32], from: Address) -> Result<()> {
    let pinned = Pinned::new(operations.gpu.context(), values.len().min(CHUNK) * size_of::<f32>())?;
    for (number, chunk) in values.chunks_mut(CHUNK).enumerate() {
        let from = from.offset(number * CHUNK * size_of::<f32>());
        operations.gpu.compute.download(&pinned, 0..size_of_val(chunk), from)?;
        operations.gpu.compute.synchronize()?;
        pinned.read(0, chunk);
    }
    Ok(())
}
