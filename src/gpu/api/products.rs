//! cuBLASLt matrix products: descriptors, the heuristic's choice of an algorithm, and the product itself.

use super::super::library::{self, Missing};
use super::{Address, Fault, Handle, StreamHandle};
use cudarc::cublaslt::sys;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

super::functions! {
    /// The cuBLASLt functions in use.
    Functions from sys {
        cublasLtCreate(*mut sys::cublasLtHandle_t);
        cublasLtDestroy(sys::cublasLtHandle_t);
        cublasLtMatmulDescCreate(*mut sys::cublasLtMatmulDesc_t, sys::cublasComputeType_t, sys::cudaDataType_t);
        cublasLtMatmulDescDestroy(sys::cublasLtMatmulDesc_t);
        cublasLtMatmulDescSetAttribute(
            sys::cublasLtMatmulDesc_t, sys::cublasLtMatmulDescAttributes_t, *const c_void, usize,
        );
        cublasLtMatrixLayoutCreate(*mut sys::cublasLtMatrixLayout_t, sys::cudaDataType, u64, u64, i64);
        cublasLtMatrixLayoutDestroy(sys::cublasLtMatrixLayout_t);
        cublasLtMatmulPreferenceCreate(*mut sys::cublasLtMatmulPreference_t);
        cublasLtMatmulPreferenceDestroy(sys::cublasLtMatmulPreference_t);
        cublasLtMatmulPreferenceSetAttribute(
            sys::cublasLtMatmulPreference_t, sys::cublasLtMatmulPreferenceAttributes_t, *const c_void, usize,
        );
        cublasLtMatmulAlgoGetHeuristic(
            sys::cublasLtHandle_t, sys::cublasLtMatmulDesc_t, sys::cublasLtMatrixLayout_t, sys::cublasLtMatrixLayout_t,
            sys::cublasLtMatrixLayout_t, sys::cublasLtMatrixLayout_t, sys::cublasLtMatmulPreference_t, c_int,
            *mut sys::cublasLtMatmulHeuristicResult_t, *mut c_int,
        );
        cublasLtMatmul(
            sys::cublasLtHandle_t, sys::cublasLtMatmulDesc_t, *const c_void, *const c_void, sys::cublasLtMatrixLayout_t,
            *const c_void, sys::cublasLtMatrixLayout_t, *const c_void, *const c_void, sys::cublasLtMatrixLayout_t,
            *mut c_void, sys::cublasLtMatrixLayout_t, *const sys::cublasLtMatmulAlgo_t, *mut c_void, usize,
            sys::cudaStream_t,
        );
    } -> sys::cublasStatus_t
}

/// Status of a product that the library does not support.
pub const NOT_SUPPORTED: u32 = sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED as u32;

/// A cuBLASLt call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProductError {
    /// cuBLASLt is not installed.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// cuBLASLt is installed but unusable.
    #[error("expected a working cuBLASLt, found one that {0}: reinstall it")]
    Broken(String),
    /// A call failed.
    #[error("{call} failed: cuBLASLt returned {} ({code})", status(*.code))]
    Refused {
        /// Function that was called.
        call: &'static str,
        /// The library's status code.
        code: u32,
    },
    /// Work before a call failed.
    #[error(transparent)]
    Driver(#[from] Fault),
}

impl ProductError {
    /// Whether no algorithm supports this product.
    pub fn is_not_supported(&self) -> bool {
        use sys::cublasStatus_t::*;
        let codes = [CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_ARCH_MISMATCH, CUBLAS_STATUS_NOT_SUPPORTED];
        matches!(self, ProductError::Refused { code, .. } if codes.iter().any(|known| *known as u32 == *code))
    }
}

fn status(code: u32) -> &'static str {
    use sys::cublasStatus_t::*;
    let statuses = [
        (CUBLAS_STATUS_NOT_INITIALIZED, "not initialized"),
        (CUBLAS_STATUS_ALLOC_FAILED, "allocation failed"),
        (CUBLAS_STATUS_INVALID_VALUE, "invalid value"),
        (CUBLAS_STATUS_ARCH_MISMATCH, "architecture mismatch"),
        (CUBLAS_STATUS_MAPPING_ERROR, "mapping error"),
        (CUBLAS_STATUS_EXECUTION_FAILED, "execution failed"),
        (CUBLAS_STATUS_INTERNAL_ERROR, "internal error"),
        (CUBLAS_STATUS_NOT_SUPPORTED, "not supported"),
    ];
    statuses.iter().find(|(known, _)| *known as u32 == code).map_or("an unknown status", |(_, words)| words)
}

/// Calls a function of cuBLASLt and turns its status into a result.
macro_rules! call {
    ($api:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: result pointers point at locals of their type, pointers to attributes and scalars at locals of the size
        // passed; descriptors are alive, because their owner is borrowed. Device addresses are only passed on.
        match unsafe { ($api.functions.$name)($($argument),*) } {
            0 => Ok(()),
            code => Err(ProductError::Refused { call: stringify!($name), code }),
        }
    }};
}

/// Element type of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element {
    F32,
    Bf16,
}

impl Element {
    fn code(self) -> sys::cudaDataType_t {
        match self {
            Element::F32 => sys::cudaDataType_t::CUDA_R_32F,
            Element::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
        }
    }
}

/// A column-major matrix without gaps between columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Layout {
    pub element: Element,
    pub rows: usize,
    pub columns: usize,
}

/// Operation applied to a product before it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Epilogue {
    None,
    /// Adds a bias to each column.
    Bias,
    /// Adds a bias, stores the sum, then applies GELU.
    BiasGelu,
    /// Multiplies by the derivative of GELU at the stored sum.
    GeluBackward,
    /// Stores, instead of adding to, the sum of each column of op(B) as bias.
    BiasGradient,
}

/// D = op(A) op(B) + beta C, all column-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    pub a: Layout,
    pub b: Layout,
    pub d: Layout,
    pub transposed: [bool; 2],
    /// Whether C, with the layout of D, is added.
    pub adds: bool,
    pub epilogue: Epilogue,
}

/// Addresses of the operands of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Operands {
    pub a: Address,
    pub b: Address,
    /// The addend; D itself if nothing is added.
    pub c: Address,
    pub d: Address,
    pub bias: Address,
    /// The input of GELU, written or read by the GELU epilogues.
    pub kept: Address,
}

/// Memory for partial sums of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Workspace {
    pub address: Address,
    pub bytes: usize,
}

/// cuBLASLt on one device.
pub struct Lt {
    functions: Functions,
    handle: Handle<sys::cublasLtContext>,
}

/// A planned product of one shape: descriptors and algorithms.
pub struct Product {
    lt: Arc<Lt>,
    description: Handle<sys::cublasLtMatmulDescOpaque_t>,
    layouts: [Handle<sys::cublasLtMatrixLayoutOpaque_t>; 3],
    /// What the library proposes, best first by its own estimate.
    algorithms: Vec<sys::cublasLtMatmulAlgo_t>,
    adds: bool,
    epilogue: Epilogue,
    output: Element,
}

impl Product {
    /// Returns the library's descriptions of the algorithms, which only it can read.
    pub fn algorithms(&self) -> impl Iterator<Item = [u64; 8]> {
        self.algorithms.iter().map(|algorithm| algorithm.data)
    }
}

impl Lt {
    /// Loads the library and opens it on the current context's device.
    pub fn open() -> Result<Lt, ProductError> {
        let library = library::open(&library::CUBLASLT)?.reopen().map_err(ProductError::Broken)?;
        let functions = Functions::load(&library);
        let functions = functions.map_err(|missing| ProductError::Broken(format!("lacks {}", missing.join(", "))))?;
        let mut lt = Lt { functions, handle: Handle::new(std::ptr::null_mut()) };
        let mut handle = std::ptr::null_mut();
        call!(lt, cublasLtCreate(&mut handle))?;
        lt.handle = Handle::new(handle);
        Ok(lt)
    }

    /// Plans a product for at most `multiprocessors` multiprocessors, with at most `candidates` algorithms.
    /// [`ProductError::is_not_supported`] tells whether the library has no algorithm for it.
    pub fn product(
        self: &Arc<Lt>,
        shape: &Shape,
        multiprocessors: Option<u32>,
        candidates: usize,
        workspace: Workspace,
    ) -> Result<Product, ProductError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let mut product = Product {
            lt: self.clone(),
            description: Handle::new(std::ptr::null_mut()),
            layouts: [Handle::new(std::ptr::null_mut()); 3],
            algorithms: Vec::new(),
            adds: shape.adds,
            epilogue: shape.epilogue,
            output: shape.d.element,
        };
        let mut description = std::ptr::null_mut();
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        call!(self, cublasLtMatmulDescCreate(&mut description, compute, sys::cudaDataType_t::CUDA_R_32F))?;
        product.description = Handle::new(description);
        for (layout, wanted) in product.layouts.iter_mut().zip([shape.a, shape.b, shape.d]) {
            let mut created = std::ptr::null_mut();
            let Layout { element, rows, columns } = wanted;
            let (rows, columns, stride) = (rows as u64, columns as u64, rows as i64);
            call!(self, cublasLtMatrixLayoutCreate(&mut created, element.code(), rows, columns, stride))?;
            *layout = Handle::new(created);
        }
        let names = [Attribute::CUBLASLT_MATMUL_DESC_TRANSA, Attribute::CUBLASLT_MATMUL_DESC_TRANSB];
        for (name, transposed) in names.into_iter().zip(shape.transposed) {
            self.set(&product, name, &i32::from(transposed))?;
        }
        let epilogue = match shape.epilogue {
            Epilogue::None => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT,
            Epilogue::Bias => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
            Epilogue::BiasGelu => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
            Epilogue::GeluBackward => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DGELU,
            Epilogue::BiasGradient => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BGRADB,
        };
        self.set(&product, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &(epilogue as u32))?;
        // The heuristic checks the alignment of these pointers; the workspace is a placeholder until the product runs.
        let anywhere = workspace.address;
        self.point(&product, anywhere, anywhere)?;
        if matches!(shape.epilogue, Epilogue::BiasGelu | Epilogue::GeluBackward) {
            self.set(&product, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &(shape.d.rows as i64))?;
        }
        if let Some(count) = multiprocessors {
            self.set(&product, Attribute::CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &(count as i32))?;
        }
        product.algorithms = self.propose(&product, candidates, workspace.bytes)?;
        Ok(product)
    }

    /// Sets an attribute of a product's description.
    fn set<T: bytemuck::NoUninit>(
        &self,
        product: &Product,
        name: sys::cublasLtMatmulDescAttributes_t,
        value: &T,
    ) -> Result<(), ProductError> {
        let value = std::ptr::from_ref(value).cast();
        call!(self, cublasLtMatmulDescSetAttribute(product.description.raw(), name, value, size_of::<T>()))
    }

    /// Sets the addresses of the epilogue's operands.
    fn point(&self, product: &Product, bias: Address, kept: Address) -> Result<(), ProductError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        if matches!(product.epilogue, Epilogue::Bias | Epilogue::BiasGelu | Epilogue::BiasGradient) {
            self.set(product, Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias.0)?;
        }
        if matches!(product.epilogue, Epilogue::BiasGelu | Epilogue::GeluBackward) {
            self.set(product, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &kept.0)?;
        }
        Ok(())
    }

    /// Returns the heuristic's choices, at least one. Partial sums are float32 and added in a fixed order; with bfloat16 output they are not
    /// kept in the output, which would round each of them.
    fn propose(
        &self,
        product: &Product,
        most: usize,
        workspace_bytes: usize,
    ) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, ProductError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let mut preference = std::ptr::null_mut();
        call!(self, cublasLtMatmulPreferenceCreate(&mut preference))?;
        let mut reductions = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        if product.output == Element::F32 {
            reductions |= sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_INPLACE as u32;
        }
        let bytes = workspace_bytes as u64;
        let (bytes, mask) = (std::ptr::from_ref(&bytes).cast(), std::ptr::from_ref(&reductions).cast());
        let empty = sys::cublasLtMatmulHeuristicResult_t {
            algo: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
            workspaceSize: 0,
            state: sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS,
            wavesCount: 0.0,
            reserved: [0; 4],
        };
        let mut found = vec![empty; most];
        let mut count = 0;
        let [a, b, d] = product.layouts.map(Handle::raw);
        let outcome = (|| {
            let name = Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            call!(self, cublasLtMatmulPreferenceSetAttribute(preference, name, bytes, 8))?;
            let name = Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK;
            call!(self, cublasLtMatmulPreferenceSetAttribute(preference, name, mask, 4))?;
            let (handle, description) = (self.handle.raw(), product.description.raw());
            let (most, into) = (most as c_int, found.as_mut_ptr());
            call!(
                self,
                cublasLtMatmulAlgoGetHeuristic(handle, description, a, b, d, d, preference, most, into, &mut count)
            )
        })();
        call!(self, cublasLtMatmulPreferenceDestroy(preference))?;
        outcome?;
        found.truncate(count.max(0) as usize);
        found.retain(|result| result.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        if found.is_empty() {
            return Err(ProductError::Refused { call: "cublasLtMatmulAlgoGetHeuristic", code: NOT_SUPPORTED });
        }
        Ok(found.into_iter().map(|result| result.algo).collect())
    }

    /// Enqueues a product by one of its algorithms.
    pub(super) fn multiply(
        &self,
        product: &Product,
        algorithm: usize,
        operands: &Operands,
        workspace: Workspace,
        stream: StreamHandle,
    ) -> Result<(), ProductError> {
        self.point(product, operands.bias, operands.kept)?;
        let (alpha, beta) = (1.0_f32, if product.adds { 1.0_f32 } else { 0.0 });
        let (alpha, beta) = (std::ptr::from_ref(&alpha).cast(), std::ptr::from_ref(&beta).cast());
        let [la, lb, ld] = product.layouts.map(Handle::raw);
        let pointer = |address: Address| std::ptr::without_provenance_mut::<c_void>(address.0 as usize);
        let (a, b, c, d) = (pointer(operands.a), pointer(operands.b), pointer(operands.c), pointer(operands.d));
        let algorithm = product.algorithms.get(algorithm).map_or(std::ptr::null(), std::ptr::from_ref);
        let (space, bytes) = (pointer(workspace.address), workspace.bytes);
        let (lt, how, on) = (self.handle.raw(), product.description.raw(), stream.raw().cast());
        call!(self, cublasLtMatmul(lt, how, alpha, a, la, b, lb, beta, c, ld, d, ld, algorithm, space, bytes, on))
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        // At worst a descriptor leaks.
        if !self.description.raw().is_null() {
            let _ = call!(self.lt, cublasLtMatmulDescDestroy(self.description.raw()));
        }
        for layout in self.layouts.into_iter().filter(|layout| !layout.raw().is_null()) {
            let _ = call!(self.lt, cublasLtMatrixLayoutDestroy(layout.raw()));
        }
    }
}

impl Drop for Lt {
    fn drop(&mut self) {
        if !self.handle.raw().is_null() {
            let _ = call!(self, cublasLtDestroy(self.handle.raw()));
        }
    }
}
