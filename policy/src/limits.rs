//! Every bound of this crate, with its reason.

/// Files in one bundle. A federation of hundreds of institutions fits; a mistyped path to `/` does not.
pub const MAX_FILES: usize = 512;
/// Bytes in one file. Larger ones are generated, and belong split.
pub const MAX_FILE_BYTES: usize = 1024 * 1024;
/// Bytes of all files of one bundle together: a bundle is one entry of the replicated log, and one gRPC message (4
/// MiB).
pub const MAX_BUNDLE_BYTES: usize = 2 * 1024 * 1024;
/// Documents in one bundle.
pub const MAX_DOCUMENTS: usize = 10_000;
/// Problems reported at once; after these, more are noise.
pub const MAX_PROBLEMS: usize = 200;
/// Nesting of lists and mappings in one document; the deepest field of any kind lies at 5.
pub const MAX_DEPTH: usize = 24;
/// Items in one list of a document.
pub const MAX_LIST_ITEMS: usize = 4_096;
/// Characters of a free text field (display name, purpose, contact).
pub const MAX_TEXT_CHARS: usize = 1_024;
/// Characters of a name or id (the DNS label length, so that names fit into Kubernetes objects).
pub const MAX_NAME_CHARS: usize = 63;
/// Bytes of a CEL selector. With comprehensions refused, its cost grows at most linearly with its length.
pub const MAX_SELECTOR_BYTES: usize = 1_024;
/// Open brackets, operators and conditionals nested in a selector: bounds the stack that parsing and evaluation take.
pub const MAX_SELECTOR_DEPTH: usize = 24;
/// Bytes of a regular expression in a selector; it is compiled at each evaluation.
pub const MAX_PATTERN_BYTES: usize = 128;
/// Depth of folders below the policy directory.
pub const MAX_FOLDER_DEPTH: usize = 8;
/// The longest duration a document may name: ten years.
pub const MAX_DURATION_MS: u64 = 10 * 366 * 24 * 60 * 60 * 1000;
/// The largest amount of GPUs a document may name, in milli-GPU: ten million GPUs.
pub const MAX_GPUS_MILLI: u64 = 10_000_000 * 1000;
