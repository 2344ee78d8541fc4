//! Causal attention as one operation of cuDNN, forward (`SDPA_FWD`) or backward (`SDPA_BWD`): the engines that the library proposes
//! for it, and plans.

use super::super::Address;
use super::numbers::*;
use super::{AttentionError, Cudnn, CudnnHandle, Descriptor, RawDescriptor, Result};
use std::ffi::{c_int, c_void};

/// Which gradient, if any, an operation computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pass {
    Forward,
    Backward,
}

/// Sizes of a causal attention over fused rows of `heads` queries, `groups` keys and `groups` values, `size` channels each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttentionShape {
    pub sequences: usize,
    pub tokens: usize,
    pub heads: usize,
    pub groups: usize,
    pub size: usize,
}

/// Addresses of the operands, in bfloat16. A forward leaves the gradients null.
#[derive(Clone, Copy, Debug)]
pub struct AttentionOperands {
    /// (B, T, (heads + 2 groups) size)
    pub fused: Address,
    /// (B, T, heads size)
    pub output: Address,
    /// (B, heads, T), float32: the natural logarithms of the sums of exponentials.
    pub log_sums: Address,
    /// The gradient of `output`.
    pub gradient: Address,
    /// The gradient of `fused`.
    pub fused_gradient: Address,
    /// [`Plan::workspace_bytes`] bytes.
    pub workspace: Address,
}

/// The device that a plan is for.
pub enum PlanTarget<'a> {
    /// That of a handle.
    Handle(&'a CudnnHandle),
    /// One that need not be here, by [`Cudnn::properties`].
    Properties(&'a Descriptor),
}

/// A finalized plan of one operation.
pub struct Plan {
    plan: Descriptor,
    /// What the plan was made of.
    _parts: Vec<Descriptor>,
    pass: Pass,
    scale: f32,
    size: usize,
    heads: [usize; 2],
    /// Temporary memory of an execution.
    pub workspace_bytes: usize,
    /// Whether the library says that the engine's bits may differ between executions.
    pub may_differ: bool,
}

impl Cudnn {
    /// Plans an operation for a device: the first of the library's proposals that can be built, those before the others whose bits do not
    /// differ between executions. A target number of multiprocessors is not set, because the library then proposes nothing.
    pub fn plan(&'static self, pass: Pass, shape: &AttentionShape, target: &PlanTarget<'_>) -> Result<Plan> {
        let mut parts = Vec::new();
        let operation = self.operation(pass, shape, &mut parts)?;
        let mut graph = Descriptor::new(self, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?
            .holding(CUDNN_ATTR_OPERATIONGRAPH_OPS, &operation)?;
        if let PlanTarget::Handle(handle) = target {
            graph = graph.typed(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &[handle.raw.raw()])?;
        }
        let graph = graph.finalized()?;
        parts.push(operation);
        let mut engines = Vec::new();
        for mode in [CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK] {
            engines.extend(self.engines(&graph, mode, target)?);
        }
        engines.sort_by_key(|(may_differ, _)| *may_differ);
        let (proposed, mut last) = (engines.len(), None);
        for (may_differ, engine) in engines {
            match self.built(&engine, target) {
                Ok((plan, workspace_bytes)) => {
                    parts.extend([graph, engine]);
                    let &AttentionShape { heads, groups, size, .. } = shape;
                    let (scale, heads) = ((size as f32).sqrt().recip(), [heads, groups]);
                    return Ok(Plan { plan, _parts: parts, pass, scale, size, heads, workspace_bytes, may_differ });
                }
                Err(error) => last = Some(error),
            }
        }
        let AttentionShape { sequences, tokens, heads, groups, size } = shape;
        let operation = format!(
            "the {pass:?} of {sequences} sequences of {tokens} tokens, {heads} heads in {groups} groups of {size} channels"
        );
        let last = last.map_or(String::new(), |error| format!(" (the last: {error})"));
        Err(AttentionError::NoEngine { operation, proposed, last })
    }

    /// Returns the engine configurations that the library proposes, best first, and whether the bits of each may differ.
    fn engines(
        &'static self,
        graph: &Descriptor,
        mode: c_int,
        target: &PlanTarget<'_>,
    ) -> Result<Vec<(bool, Descriptor)>> {
        let mut heuristic = Descriptor::new(self, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?
            .holding(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)?
            .typed(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &[mode])?;
        if let PlanTarget::Properties(device) = target {
            heuristic = heuristic.holding(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device)?;
        }
        let heuristic = heuristic.finalized()?;
        let configurations: Vec<Descriptor> = (0..MOST_ENGINES)
            .map(|_| Descriptor::new(self, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR))
            .collect::<Result<_>>()?;
        let mut raw: Vec<RawDescriptor> = configurations.iter().map(|each| each.raw.raw()).collect();
        let found = heuristic.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut raw)?;
        let noted = |configuration: Descriptor| {
            let engine = Descriptor::new(self, CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
            let mut own = [engine.raw.raw()];
            configuration.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut own)?;
            let mut notes = [0; MOST_NOTES];
            let count = engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, &mut notes)?;
            let may_differ = notes.iter().take(count).any(|note| *note == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
            Ok((may_differ, configuration))
        };
        configurations.into_iter().take(found).map(noted).collect()
    }

    /// Builds the plan of an engine configuration. Returns it and the bytes of its workspace.
    fn built(&'static self, engine: &Descriptor, target: &PlanTarget<'_>) -> Result<(Descriptor, usize)> {
        let plan = Descriptor::new(self, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?
            .holding(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine)?;
        let plan = match target {
            PlanTarget::Handle(handle) => {
                plan.typed(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, &[handle.raw.raw()])?
            }
            PlanTarget::Properties(device) => plan.holding(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device)?,
        };
        let (plan, mut bytes) = (plan.finalized()?, [0_i64]);
        plan.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, &mut bytes)?;
        Ok((plan, bytes[0].max(0) as usize))
    }

    /// Describes an operation. Its parts are kept, too.
    fn operation(&'static self, pass: Pass, shape: &AttentionShape, parts: &mut Vec<Descriptor>) -> Result<Descriptor> {
        let &AttentionShape { sequences: b, tokens: t, heads, groups, size } = shape;
        let bfloat16 = |number, heads, width: usize| {
            let strides = [t * width, size, width, 1];
            self.tensor(number, CUDNN_DATA_BFLOAT16, [[b, heads, t, size], strides], Memory::Device)
        };
        let (fused, width) = ((heads + 2 * groups) * size, heads * size);
        let log_sums = [[b, heads, t, 1], [heads * t, t, 1, 1]];
        let mask = self.causal_mask([b, heads, t], parts)?;
        let mut tensors = vec![
            bfloat16(QUERIES, heads, fused)?,
            bfloat16(KEYS, groups, fused)?,
            bfloat16(VALUES, groups, fused)?,
            bfloat16(OUTPUT, heads, width)?,
            self.tensor(LOG_SUMS, CUDNN_DATA_FLOAT, log_sums, Memory::Device)?,
            self.tensor(SCALE, CUDNN_DATA_FLOAT, [[1; 4]; 2], Memory::Value)?,
        ];
        if pass == Pass::Backward {
            tensors.extend([
                bfloat16(QUERIES_GRADIENT, heads, fused)?,
                bfloat16(KEYS_GRADIENT, groups, fused)?,
                bfloat16(VALUES_GRADIENT, groups, fused)?,
                bfloat16(OUTPUT_GRADIENT, heads, width)?,
            ]);
        }
        let (kind, names, [subgraph, from, to]) = match pass {
            Pass::Forward => (CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR, &FORWARD[..], FORWARD_MASK),
            Pass::Backward => (CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR, &BACKWARD[..], BACKWARD_MASK),
        };
        let mut operation = Descriptor::new(self, kind)?;
        for (name, tensor) in names.iter().zip(&tensors) {
            operation = operation.holding(*name, tensor)?;
        }
        operation = operation.holding(subgraph, &mask)?.with(from, &[SCORES])?.with(to, &[MASKED])?.finalized()?;
        parts.extend(tensors);
        parts.push(mask);
        Ok(operation)
    }

    /// Describes the graph that replaces the scores of later keys by minus infinity.
    fn causal_mask(&'static self, [b, heads, t]: [usize; 3], parts: &mut Vec<Descriptor>) -> Result<Descriptor> {
        let square = [[b, heads, t, t], [heads * t * t, t * t, t, 1]];
        let scores = self.tensor(SCORES, CUDNN_DATA_FLOAT, square, Memory::Virtual)?;
        let masked = self.tensor(MASKED, CUDNN_DATA_FLOAT, square, Memory::Virtual)?;
        let value = self.tensor(MASK_VALUE, CUDNN_DATA_FLOAT, [[1; 4]; 2], Memory::Value)?;
        let comparison = CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE;
        let mask = Descriptor::new(self, CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR)?
            .holding(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC, &scores)?
            .holding(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC, &value)?
            .holding(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC, &masked)?
            // a score is kept if its query is at or behind its key
            .typed(comparison, CUDNN_TYPE_POINTWISE_MODE, &[CUDNN_POINTWISE_CMP_GE])?
            .finalized()?;
        let graph = Descriptor::new(self, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?
            .holding(CUDNN_ATTR_OPERATIONGRAPH_OPS, &mask)?
            .finalized()?;
        parts.extend([scores, masked, value, mask]);
        Ok(graph)
    }

    /// Describes a tensor by its number, type, dimensions and strides in elements.
    fn tensor(
        &'static self,
        number: i64,
        kind: c_int,
        [dimensions, strides]: [[usize; 4]; 2],
        memory: Memory,
    ) -> Result<Descriptor> {
        let alignment: i64 = if memory == Memory::Value { 4 } else { 16 };
        let tensor = Descriptor::new(self, CUDNN_BACKEND_TENSOR_DESCRIPTOR)?
            .with(CUDNN_ATTR_TENSOR_UNIQUE_ID, &[number])?
            .typed(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &[kind])?
            .with(CUDNN_ATTR_TENSOR_DIMENSIONS, &dimensions.map(|size| size as i64))?
            .with(CUDNN_ATTR_TENSOR_STRIDES, &strides.map(|size| size as i64))?
            .with(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[alignment])?;
        match memory {
            Memory::Device => tensor.finalized(),
            Memory::Virtual => tensor.with(CUDNN_ATTR_TENSOR_IS_VIRTUAL, &[true])?.finalized(),
            Memory::Value => tensor.with(CUDNN_ATTR_TENSOR_IS_BY_VALUE, &[true])?.finalized(),
        }
    }

    /// Enqueues an operation on a stream of the handle's context.
    pub fn run(
        &'static self,
        handle: &CudnnHandle,
        plan: &Plan,
        operands: &AttentionOperands,
        stream: *mut c_void,
    ) -> Result<()> {
        let (scale, mask_value) = (plan.scale, f32::NEG_INFINITY);
        let [first, last] = plan.heads.map(|heads| 2 * heads * plan.size); // bytes in a row before keys, and before values
        let device = |address: Address| std::ptr::without_provenance_mut::<c_void>(address.0 as usize);
        let value = |value: &f32| std::ptr::from_ref(value).cast_mut().cast::<c_void>();
        let parts = |rows: Address| [0, first, first + last].map(|bytes| device(rows.offset(bytes)));
        let [queries, keys, values] = parts(operands.fused);
        let mut places = vec![
            (QUERIES, queries),
            (KEYS, keys),
            (VALUES, values),
            (OUTPUT, device(operands.output)),
            (LOG_SUMS, device(operands.log_sums)),
            (SCALE, value(&scale)),
            (MASK_VALUE, value(&mask_value)),
        ];
        if plan.pass == Pass::Backward {
            let [queries, keys, values] = parts(operands.fused_gradient);
            places.extend([(QUERIES_GRADIENT, queries), (KEYS_GRADIENT, keys), (VALUES_GRADIENT, values)]);
            places.push((OUTPUT_GRADIENT, device(operands.gradient)));
        }
        let (numbers, pointers): (Vec<i64>, Vec<*mut c_void>) = places.into_iter().unzip();
        let workspace = [device(operands.workspace)];
        let pack = Descriptor::new(self, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?
            .with(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &numbers)?
            .typed(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, &pointers)?
            .typed(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, &workspace)?
            .finalized()?;
        // SAFETY: the stream is alive; the library copies its handle.
        let code = unsafe { (self.functions.cudnnSetStream)(handle.raw.raw(), stream.cast()) };
        self.checked(code, || "cudnnSetStream".to_string())?;
        // SAFETY: all descriptors are alive and finalized; values are read before the call returns, device addresses only passed on.
        let code =
            unsafe { (self.functions.cudnnBackendExecute)(handle.raw.raw(), plan.plan.raw.raw(), pack.raw.raw()) };
        self.checked(code, || "cudnnBackendExecute".to_string())
    }
}

/// Where a tensor is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    Device,
    /// Nowhere: operations of one graph pass it on.
    Virtual,
    /// One number in the host's memory.
    Value,
}

/// Limits of what is read of the library's proposals, and of an engine's notes.
const MOST_ENGINES: usize = 16;
const MOST_NOTES: usize = 16;
