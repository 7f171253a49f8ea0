"""The messages of the Open Inference Protocol's gRPC form, with Triton's for configurations and statistics.

Names, numbers and types are those of the package `inference` in the protocol's public definition.
"""

from __future__ import annotations

from collections.abc import Mapping

from heterocc.runtime.serve.protocols.descriptors import Service, Table

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "ServerLiveRequest": (),
    "ServerLiveResponse": ("1 live bool",),
    "ServerReadyRequest": (),
    "ServerReadyResponse": ("1 ready bool",),
    "ModelReadyRequest": ("1 name string", "2 version string"),
    "ModelReadyResponse": ("1 ready bool",),
    "ServerMetadataRequest": (),
    "ServerMetadataResponse": ("1 name string", "2 version string", "3 extensions string*"),
    "ModelMetadataRequest": ("1 name string", "2 version string"),
    "ModelMetadataResponse": (
        "1 name string",
        "2 versions string*",
        "3 platform string",
        "4 inputs ModelMetadataResponse.TensorMetadata*",
        "5 outputs ModelMetadataResponse.TensorMetadata*",
    ),
    "ModelMetadataResponse.TensorMetadata": ("1 name string", "2 datatype string", "3 shape int64*"),
    "InferParameter": (
        "1 bool_param bool parameter_choice",
        "2 int64_param int64 parameter_choice",
        "3 string_param string parameter_choice",
        "4 double_param double parameter_choice",
        "5 uint64_param uint64 parameter_choice",
    ),
    "InferTensorContents": (
        "1 bool_contents bool*",
        "2 int_contents int32*",
        "3 int64_contents int64*",
        "4 uint_contents uint32*",
        "5 uint64_contents uint64*",
        "6 fp32_contents float*",
        "7 fp64_contents double*",
        "8 bytes_contents bytes*",
    ),
    "ModelInferRequest": (
        "1 model_name string",
        "2 model_version string",
        "3 id string",
        "4 parameters map:InferParameter",
        "5 inputs ModelInferRequest.InferInputTensor*",
        "6 outputs ModelInferRequest.InferRequestedOutputTensor*",
        "7 raw_input_contents bytes*",
    ),
    "ModelInferRequest.InferInputTensor": (
        "1 name string",
        "2 datatype string",
        "3 shape int64*",
        "4 parameters map:InferParameter",
        "5 contents InferTensorContents",
    ),
    "ModelInferRequest.InferRequestedOutputTensor": ("1 name string", "2 parameters map:InferParameter"),
    "ModelInferResponse": (
        "1 model_name string",
        "2 model_version string",
        "3 id string",
        "4 parameters map:InferParameter",
        "5 outputs ModelInferResponse.InferOutputTensor*",
        "6 raw_output_contents bytes*",
    ),
    "ModelInferResponse.InferOutputTensor": (
        "1 name string",
        "2 datatype string",
        "3 shape int64*",
        "4 parameters map:InferParameter",
        "5 contents InferTensorContents",
    ),
    "ModelRepositoryParameter": (
        "1 bool_param bool parameter_choice",
        "2 int64_param int64 parameter_choice",
        "3 string_param string parameter_choice",
        "4 bytes_param bytes parameter_choice",
    ),
    "RepositoryIndexRequest": ("1 repository_name string", "2 ready bool"),
    "RepositoryIndexResponse": ("1 models RepositoryIndexResponse.ModelIndex*",),
    "RepositoryIndexResponse.ModelIndex": ("1 name string", "2 version string", "3 state string", "4 reason string"),
    "RepositoryModelLoadRequest": (
        "1 repository_name string",
        "2 model_name string",
        "3 parameters map:ModelRepositoryParameter",
    ),
    "RepositoryModelLoadResponse": (),
    "RepositoryModelUnloadRequest": (
        "1 repository_name string",
        "2 model_name string",
        "3 parameters map:ModelRepositoryParameter",
    ),
    "RepositoryModelUnloadResponse": (),
    "ModelConfigRequest": ("1 name string", "2 version string"),
    "ModelConfigResponse": ("1 config ModelConfig",),
    "ModelConfig": (
        "1 name string",
        "2 platform string",
        "4 max_batch_size int32",
        "5 input ModelInput*",
        "6 output ModelOutput*",
        "7 instance_group ModelInstanceGroup*",
        "11 dynamic_batching ModelDynamicBatching scheduling_choice",
        "17 backend string",
    ),
    "ModelInput": ("1 name string", "2 data_type enum:DataType", "4 dims int64*"),
    "ModelOutput": ("1 name string", "2 data_type enum:DataType", "3 dims int64*"),
    "ModelInstanceGroup": ("1 name string", "2 count int32", "4 kind enum:ModelInstanceGroup.Kind"),
    "ModelDynamicBatching": (),
    "ModelStatisticsRequest": ("1 name string", "2 version string"),
    "ModelStatisticsResponse": ("1 model_stats ModelStatistics*",),
    "ModelStatistics": (
        "1 name string",
        "2 version string",
        "3 last_inference uint64",
        "4 inference_count uint64",
        "5 execution_count uint64",
        "6 inference_stats InferStatistics",
        "7 batch_stats InferBatchStatistics*",
    ),
    "StatisticDuration": ("1 count uint64", "2 ns uint64"),
    "InferStatistics": (
        "1 success StatisticDuration",
        "2 fail StatisticDuration",
        "3 queue StatisticDuration",
        "4 compute_input StatisticDuration",
        "5 compute_infer StatisticDuration",
        "6 compute_output StatisticDuration",
        "7 cache_hit StatisticDuration",
        "8 cache_miss StatisticDuration",
    ),
    "InferBatchStatistics": (
        "1 batch_size uint64",
        "2 compute_input StatisticDuration",
        "3 compute_infer StatisticDuration",
        "4 compute_output StatisticDuration",
    ),
}
"""Fields, as `Table` has them. Of a model's configuration those that the service has values for."""

_ENUMS: Mapping[str, Mapping[int, str]] = {
    "DataType": dict(
        enumerate(
            f"TYPE_{name}"
            for name in (
                "INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16",
                "FP32", "FP64", "STRING", "BF16",
            )
        )
    ),
    "ModelInstanceGroup.Kind": {0: "KIND_AUTO", 1: "KIND_GPU", 2: "KIND_CPU", 3: "KIND_MODEL"},
}  # fmt: skip

METHODS = (
    "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig", "ModelStatistics",
    "ModelInfer", "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload",
)  # fmt: skip

TABLE = Table(
    "open_inference.proto",
    PACKAGE,
    _FIELDS,
    _ENUMS,
    [Service(SERVICE, {name: (f"{name}Request", f"{name}Response") for name in METHODS}, {})],
)

MESSAGES = TABLE.messages
"""The message classes by name."""


def number_of(message: str, field: str) -> int:
    """The number of a field."""
    return int(MESSAGES[message].DESCRIPTOR.fields_by_name[field].number)
