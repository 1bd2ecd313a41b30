//! Bounds of this crate, with their reasons.

/// Files in one bundle. A federation of hundreds of institutions fits; a mistyped path to `/` does not.
pub const MAX_FILES: usize = 512;
/// Bytes in one file. Split larger, generated ones.
pub const MAX_FILE_BYTES: usize = 1024 * 1024;
/// Bytes of all files of one bundle. A bundle is one entry of the replicated log and one gRPC message (at most 4 MiB).
pub const MAX_BUNDLE_BYTES: usize = 2 * 1024 * 1024;
/// Documents in one bundle.
pub const MAX_DOCUMENTS: usize = 10_000;
/// Scenarios in the tests of one directory.
pub const MAX_SCENARIOS: usize = 10_000;
/// Problems reported at once; more would be noise.
pub const MAX_PROBLEMS: usize = 200;
/// Nesting of lists and mappings in one document. The deepest field of any kind is at level 5.
pub const MAX_DEPTH: usize = 24;
/// Items in one list of a document.
pub const MAX_LIST_ITEMS: usize = 4_096;
/// Characters of a free text field (display name, purpose, contact).
pub const MAX_TEXT_CHARS: usize = 1_024;
/// Characters of a name or id: the length of a DNS label, so that names fit into Kubernetes objects.
pub const MAX_NAME_CHARS: usize = 63;
/// Bytes of a CEL expression. It has no loops, and no function whose result is longer than its input, so that its cost
/// is bounded by its length and by that of the texts it reads.
pub const MAX_EXPRESSION_BYTES: usize = 1_024;
/// Nested brackets, operators and conditionals in an expression. Bounds the stack of parsing and evaluation.
pub const MAX_EXPRESSION_DEPTH: usize = 24;
/// Rules of one bundle. Each is evaluated once for each donor that a request asks.
pub const MAX_RULES: usize = 128;
/// The largest weight of a rule that prefers.
pub const MAX_RULE_WEIGHT: u32 = 1_000;
/// Bytes of a regular expression in an expression. Every evaluation compiles it.
pub const MAX_PATTERN_BYTES: usize = 128;
/// Nested folders below the policy directory.
pub const MAX_FOLDER_DEPTH: usize = 8;
/// The longest duration in a document: ten years.
pub const MAX_DURATION_MS: u64 = 10 * 366 * 24 * 60 * 60 * 1000;
/// The shortest idle time after which leases are released: 10 seconds, because agents report use every few seconds.
pub const MIN_IDLE_RELEASE_MS: u64 = 10_000;
/// The largest number of leases in a limit on reclaims: the broker keeps the times of as many reclaims of each donor
/// and tenant.
pub const MAX_RECLAIM_LIMIT: u32 = 1_000;
/// The shortest period of a limit on reclaims: a minute.
pub const MIN_RECLAIM_PERIOD_MS: u64 = 60_000;
/// The longest period of a limit on reclaims: a week.
pub const MAX_RECLAIM_PERIOD_MS: u64 = 7 * 24 * 60 * 60 * 1000;
/// The largest amount of GPUs in a document, in milli-GPU: ten million GPUs.
pub const MAX_GPUS_MILLI: u64 = 10_000_000 * 1000;
/// The largest limit on GPU-hours in a document, in thousandths: a billion GPU-hours.
pub const MAX_GPU_HOURS_MILLI: u64 = 1_000_000_000 * 1000;
/// Request templates of one bundle: more than a catalogue that people read. A list of all fits into a message.
pub const MAX_TEMPLATES: usize = 256;
/// Characters of the title and of the category of a template: they are columns of a table.
pub const MAX_TEMPLATE_TITLE_CHARS: usize = 60;
/// Characters of the description of a template.
pub const MAX_TEMPLATE_DESCRIPTION_CHARS: usize = 256;
/// Shares of one request, as the broker bounds them.
pub const MAX_TEMPLATE_SHARES: u32 = 4_096;
/// The smallest share of a GPU in a request, in thousandths.
pub const MIN_TEMPLATE_SHARE_MILLI: u32 = 50;
/// The largest amount of CPU (thousandths of a core) or memory (MiB) in a request.
pub const MAX_TEMPLATE_AMOUNT: u64 = 1 << 40;
/// The largest RDMA bandwidth in a request, in Gbit/s.
pub const MAX_TEMPLATE_RDMA_GBITS: u32 = 1_000_000;
/// Purposes that a federation declares.
pub const MAX_PURPOSES: usize = 64;
/// The shortest lease: 10 seconds.
pub const MIN_TEMPLATE_LEASE_MS: u64 = 10_000;
/// The longest lease that a request may ask for: 90 days.
pub const MAX_TEMPLATE_LEASE_MS: u64 = 90 * 24 * 60 * 60 * 1000;
/// The longest notice of preemption that a request may ask for: a day.
pub const MAX_TEMPLATE_GRACE_MS: u64 = 24 * 60 * 60 * 1000;
/// Windows of one schedule, counted by day: eight a day.
pub const MAX_WINDOWS: usize = 56;
/// Reservations at one cluster: each decision about a lease there adds up the windows of all.
pub const MAX_RESERVATIONS_PER_CLUSTER: usize = 32;
/// Time zones of one bundle. Their offsets travel with the files: about two KiB each.
pub const MAX_ZONES: usize = 32;
/// Changes of one zone's offset: four a year from 1970 to 2060.
pub const MAX_ZONE_CHANGES: usize = 360;
/// Last change of an offset that counts, in milliseconds since 1970: the end of 2059.
pub const LAST_ZONE_MS: u64 = 2_840_140_800_000;
/// Keys in one `commitKeys`. Every signature is looked up in all of them.
pub const MAX_COMMIT_KEYS: usize = 64;
