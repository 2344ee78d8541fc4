//! Numbers of cudnn_graph.h, cuDNN 9.28, and ours for the tensors of a graph.

use std::ffi::c_int;

// Types of descriptors.
pub(super) const CUDNN_BACKEND_ENGINE_DESCRIPTOR: c_int = 2;
pub(super) const CUDNN_BACKEND_ENGINECFG_DESCRIPTOR: c_int = 3;
pub(super) const CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: c_int = 4;
pub(super) const CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: c_int = 5;
pub(super) const CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: c_int = 15;
pub(super) const CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR: c_int = 16;
pub(super) const CUDNN_BACKEND_TENSOR_DESCRIPTOR: c_int = 17;
pub(super) const CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR: c_int = 38;
pub(super) const CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR: c_int = 41;
pub(super) const CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR: c_int = 43;
pub(super) const CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR: c_int = 44;

// Types of attributes.
pub(super) const CUDNN_TYPE_HANDLE: c_int = 0;
pub(super) const CUDNN_TYPE_DATA_TYPE: c_int = 1;
pub(super) const CUDNN_TYPE_BOOLEAN: c_int = 2;
pub(super) const CUDNN_TYPE_INT64: c_int = 3;
pub(super) const CUDNN_TYPE_VOID_PTR: c_int = 6;
pub(super) const CUDNN_TYPE_HEUR_MODE: c_int = 8;
pub(super) const CUDNN_TYPE_NUMERICAL_NOTE: c_int = 11;
pub(super) const CUDNN_TYPE_POINTWISE_MODE: c_int = 14;
pub(super) const CUDNN_TYPE_BACKEND_DESCRIPTOR: c_int = 15;
pub(super) const CUDNN_TYPE_CHAR: c_int = 24;

// Values.
pub(super) const CUDNN_DATA_FLOAT: c_int = 0;
pub(super) const CUDNN_HEUR_MODE_FALLBACK: c_int = 2;
pub(super) const CUDNN_HEUR_MODE_A: c_int = 3;
pub(super) const CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC: c_int = 4;
pub(super) const CUDNN_DATA_BFLOAT16: c_int = 9;
pub(super) const CUDNN_POINTWISE_CMP_GE: c_int = 303;

// Attributes.
pub(super) const CUDNN_ATTR_ENGINEHEUR_MODE: c_int = 200;
pub(super) const CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH: c_int = 201;
pub(super) const CUDNN_ATTR_ENGINEHEUR_RESULTS: c_int = 202;
pub(super) const CUDNN_ATTR_ENGINEHEUR_DEVICEPROP: c_int = 204;
pub(super) const CUDNN_ATTR_ENGINECFG_ENGINE: c_int = 300;
pub(super) const CUDNN_ATTR_EXECUTION_PLAN_HANDLE: c_int = 400;
pub(super) const CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG: c_int = 401;
pub(super) const CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE: c_int = 402;
pub(super) const CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP: c_int = 407;
pub(super) const CUDNN_ATTR_OPERATIONGRAPH_HANDLE: c_int = 800;
pub(super) const CUDNN_ATTR_OPERATIONGRAPH_OPS: c_int = 801;
pub(super) const CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT: c_int = 900;
pub(super) const CUDNN_ATTR_TENSOR_DATA_TYPE: c_int = 901;
pub(super) const CUDNN_ATTR_TENSOR_DIMENSIONS: c_int = 902;
pub(super) const CUDNN_ATTR_TENSOR_STRIDES: c_int = 903;
pub(super) const CUDNN_ATTR_TENSOR_UNIQUE_ID: c_int = 906;
pub(super) const CUDNN_ATTR_TENSOR_IS_VIRTUAL: c_int = 907;
pub(super) const CUDNN_ATTR_TENSOR_IS_BY_VALUE: c_int = 908;
pub(super) const CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS: c_int = 1000;
pub(super) const CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS: c_int = 1001;
pub(super) const CUDNN_ATTR_VARIANT_PACK_WORKSPACE: c_int = 1003;
pub(super) const CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: c_int = 1303;
pub(super) const CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION: c_int = 2702;
pub(super) const CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC: c_int = 2800;
pub(super) const CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC: c_int = 2801;
pub(super) const CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC: c_int = 2802;
pub(super) const CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC: c_int = 2803;
pub(super) const CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC: c_int = 2804;
pub(super) const CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC: c_int = 2805;
pub(super) const CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH: c_int = 2811;
pub(super) const CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID: c_int = 2812;
pub(super) const CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID: c_int = 2813;
pub(super) const CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC: c_int = 2851;
pub(super) const CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC: c_int = 2852;
pub(super) const CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC: c_int = 2853;
pub(super) const CUDNN_ATTR_OPERATION_SDPA_BWD_ODESC: c_int = 2854;
pub(super) const CUDNN_ATTR_OPERATION_SDPA_BWD_STATSDESC: c_int = 2855;
pub(super) const CUDNN_ATTR_OPERATION_SDPA_BWD_SCALEDESC: c_int = 2856;
pub(super) const CUDNN_ATTR_OPERATION_SDPA_BWD_DQDESC: c_int = 2859;
pub(super) const CUDNN_ATTR_OPERATION_SDPA_BWD_DKDESC: c_int = 2860;
pub(super) const CUDNN_ATTR_OPERATION_SDPA_BWD_DVDESC: c_int = 2861;
pub(super) const CUDNN_ATTR_OPERATION_SDPA_BWD_DODDESC: c_int = 2862;
pub(super) const CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH: c_int = 2867;
pub(super) const CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID: c_int = 2868;
pub(super) const CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID: c_int = 2869;
pub(super) const CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC: c_int = 3000;
pub(super) const CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC: c_int = 3005;
pub(super) const CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC: c_int = 3006;
pub(super) const CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE: c_int = 3007;

// Numbers of the tensors of a graph and its mask.
pub(super) const QUERIES: i64 = 1;
pub(super) const KEYS: i64 = 2;
pub(super) const VALUES: i64 = 3;
pub(super) const OUTPUT: i64 = 4;
pub(super) const LOG_SUMS: i64 = 5;
pub(super) const SCALE: i64 = 6;
pub(super) const QUERIES_GRADIENT: i64 = 7;
pub(super) const KEYS_GRADIENT: i64 = 8;
pub(super) const VALUES_GRADIENT: i64 = 9;
pub(super) const OUTPUT_GRADIENT: i64 = 10;
pub(super) const SCORES: i64 = 11;
pub(super) const MASKED: i64 = 12;
pub(super) const MASK_VALUE: i64 = 13;

/// Attributes of the forward that name tensors, in the order of their numbers.
pub(super) const FORWARD: [c_int; 6] = [
    CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC,
    CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC,
    CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC,
    CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC,
    CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC,
    CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC,
];

/// Attributes of the backward that name tensors, in the order of their numbers.
pub(super) const BACKWARD: [c_int; 10] = [
    CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC,
    CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC,
    CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC,
    CUDNN_ATTR_OPERATION_SDPA_BWD_ODESC,
    CUDNN_ATTR_OPERATION_SDPA_BWD_STATSDESC,
    CUDNN_ATTR_OPERATION_SDPA_BWD_SCALEDESC,
    CUDNN_ATTR_OPERATION_SDPA_BWD_DQDESC,
    CUDNN_ATTR_OPERATION_SDPA_BWD_DKDESC,
    CUDNN_ATTR_OPERATION_SDPA_BWD_DVDESC,
    CUDNN_ATTR_OPERATION_SDPA_BWD_DODDESC,
];

/// Attributes of the forward for the mask: its graph, input and output.
pub(super) const FORWARD_MASK: [c_int; 3] = [
    CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH,
    CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID,
    CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID,
];

/// As [`FORWARD_MASK`], of the backward.
pub(super) const BACKWARD_MASK: [c_int; 3] = [
    CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH,
    CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID,
    CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID,
];
