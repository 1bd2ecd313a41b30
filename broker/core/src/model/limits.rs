//! Hard limits, each with its reason. Policy may set lower limits, never higher ones.

/// Bytes of one encoded command: four times the largest offer, far below the RPC's own limit.
pub const MAX_COMMAND_BYTES: usize = 16 << 20;
/// Nodes of one offer: twice the largest Kubernetes cluster that upstream supports.
pub const MAX_NODES_PER_OFFER: usize = 10_000;
/// Memory that one cluster's offer takes on each broker: twice that of 10,000 nodes with 16 devices each.
pub const MAX_OFFER_BYTES: usize = 64 << 20;
/// Devices per node. The largest servers on sale hold 16; virtual nodes may group more.
pub const MAX_DEVICES_PER_NODE: usize = 128;
/// NUMA nodes per node: four of today's largest processors, each split in four.
pub const MAX_NUMA_NODES: usize = 32;
/// RDMA networks per node. Even one network per device needs no more.
pub const MAX_NETWORKS_PER_NODE: usize = 16;
/// Gbit/s of a node on one network: 100 times that of the fastest servers.
pub const MAX_RDMA_GBITS: u32 = 1_000_000;
/// Bytes of the name of a network or of an NVLink clique.
pub const MAX_NAME_BYTES: usize = 63;
/// Bytes of the name of a Kubernetes resource: a domain of 253, a slash and a name of 63.
pub const MAX_RESOURCE_NAME_BYTES: usize = 317;
/// Shares of one request; policy usually allows less.
pub const MAX_SHARES_PER_REQUEST: u32 = 4_096;
/// Smallest fraction of a device, in thousandths: 1/20 of a GPU.
pub const MIN_SHARE_MILLI: u32 = 50;
/// A whole device in thousandths.
pub const WHOLE_MILLI: u32 = 1_000;
/// Largest CPU or memory per share, so that sums over 4,096 shares cannot overflow.
pub const MAX_AMOUNT: u64 = 1 << 40;
/// Longest lease: 90 days.
pub const MAX_LEASE_MS: u64 = 90 * 24 * 3_600 * 1_000;
/// How far in the future a request's start window may lie: a year.
pub const MAX_START_AHEAD_MS: u64 = 366 * 24 * 3_600 * 1_000;
/// Records of past use to keep before dropping those that have decayed to nothing.
pub const MAX_PASTS_KEPT: usize = 10_000;
/// Shortest lease: 10 seconds. A shorter one would not justify a handshake.
pub const MIN_LEASE_MS: u64 = 10_000;
/// Shortest idle time after which a lease is released: 10 seconds. Donors report use every few seconds.
pub const MIN_RELEASE_IDLE_MS: u64 = 10_000;
/// Waiting requests in the whole federation.
pub const MAX_QUEUED_REQUESTS: usize = 50_000;
/// Leases in the whole federation that have not ended.
pub const MAX_LEASES: usize = 200_000;
/// Donors whose refusal by an origin is remembered: a quarter of those that a request can name.
pub const MAX_REFUSED_DONORS: usize = 64;
/// How long the refusal of a donor by an origin counts for new requests: an hour. Nobody tells the brokers that the
/// origin's own policy changed, but a lease that becomes active does.
pub const REFUSAL_KEPT_MS: u64 = 3_600 * 1_000;
/// Donor names in an allow or deny list.
pub const MAX_DONOR_LIST: usize = 256;
/// Datasets that a request may name.
pub use comity_types::MAX_DATASETS_PER_REQUEST;
/// Datasets that a cluster may list.
pub const MAX_DATASETS_PER_SITE: usize = 1_024;
/// Bandwidth of a link in Mbit/s: 100 Tbit/s.
pub const MAX_MBITS: u64 = 100_000_000;
/// Bytes of free text such as `note`.
pub const MAX_NOTE_BYTES: usize = 256;
/// Bytes of a CEL selector in a request.
pub const MAX_SELECTOR_BYTES: usize = 1_024;
/// Bytes of an idempotency key.
pub const MAX_IDEMPOTENCY_KEY_BYTES: usize = 128;
/// Idempotency records to keep. Beyond that, of the institution with most of them, the caller with most loses its
/// oldest.
pub const MAX_IDEMPOTENCY_RECORDS: usize = 100_000;
/// Bytes of a public HPKE key: ML-KEM-768's 1184 and X25519's 32, together X-Wing's.
pub const HPKE_PUBLIC_BYTES: usize = 1_216;
/// Bytes of an encapsulated HPKE key: ML-KEM-768's ciphertext of 1088 and X25519's 32.
pub const HPKE_ENCAPSULATED_BYTES: usize = 1_120;
/// Bytes of an envelope's ciphertext.
pub const MAX_ENVELOPE_BYTES: usize = 64 << 10;
/// Envelopes that wait for one receiver.
pub const MAX_ENVELOPES_PER_CLUSTER: usize = 1_024;
/// Endpoint candidates of a key bundle.
pub const MAX_ENDPOINTS: usize = 8;
/// Bytes of one endpoint candidate.
pub const MAX_ENDPOINT_BYTES: usize = 262;
/// Pod address ranges per cluster.
pub const MAX_POD_CIDRS: usize = 8;
/// Bytes of a Liqo version.
pub const MAX_LIQO_VERSION_BYTES: usize = 32;
/// Open invitations.
pub const MAX_INVITES: usize = 1_000;
/// Open invitations of one inviter, so that one cannot use up all.
pub const MAX_INVITES_PER_INVITER: usize = 64;
/// Open invitations of one institution's clusters, so that its operators together cannot use up all.
pub const MAX_INVITES_PER_INSTITUTION: usize = 128;
/// Revoked users to remember. A revocation is forgotten when all certificates from before it have expired.
pub const MAX_REVOKED_USERS: usize = 10_000;
/// Members whose newest certificate is remembered.
pub const MAX_MEMBER_CERTIFICATES: usize = 16_384;
/// Suspended institutions.
pub const MAX_SUSPENSIONS: usize = 1_000;
/// How long a revocation is remembered: a day longer than the authority lets any certificate live.
pub const REVOCATION_KEPT_MS: u64 = 91 * 24 * 3_600 * 1_000;
/// Ended requests, leases and closed peerings to keep for inspection; the oldest go first.
pub const MAX_ENDED_KEPT: usize = 1_000;
/// Placements tried before a request fails.
pub const MAX_ATTEMPTS: u32 = 5;
/// Pause of a request after its first placement, if the donor had failed it before; doubles with every placement.
pub const RETRY_PAUSE_MS: u64 = 15 * 1_000;
/// Leases of one gang: one per donor, and one for each time that members joined later.
pub const MAX_PARTS: usize = 16;
/// Replacements in one chain that are themselves under reclaim. The request then waits until some have ended.
pub const MAX_REPLACED: usize = 3;
/// Placements in one command.
pub const MAX_PLACEMENTS_PER_COMMAND: usize = 512;
/// Leases that one command makes, so that no single apply takes long. A placement makes up to [`MAX_PARTS`].
pub const MAX_LEASES_PER_COMMAND: usize = 1_024;
/// Placements in one plan, which may take several commands. Larger plans contain more equal placements, which are
/// cheaper.
pub const MAX_PLACEMENTS_PER_PLAN: usize = 2_048;
/// Objects that one `Expire` may change, so that no single apply takes long.
pub const MAX_EXPIRIES_PER_COMMAND: usize = 1_000;
/// Longest notice that a preemptible request may ask for: a day.
pub const MAX_GRACE_MS: u64 = 24 * 3_600 * 1_000;
/// Leases that one command reclaims; the next command reclaims the rest.
pub const MAX_RECLAIMS_PER_COMMAND: usize = 64;
/// Bytes of the address of a policy's repository.
pub const MAX_REPOSITORY_BYTES: usize = 1_024;
/// Bytes of a branch, and of the folder with the policy.
pub const MAX_BRANCH_BYTES: usize = 255;
/// The shortest interval at which a leader pulls the policy: a fetch takes a second over a slow line.
pub const MIN_PULL_INTERVAL_MS: u64 = 5_000;
/// The longest interval at which a leader pulls the policy: a day.
pub const MAX_PULL_INTERVAL_MS: u64 = 24 * 3_600 * 1_000;
/// Characters of the reason why a commit is not in force: it names up to ten unsigned changes.
pub const MAX_PULL_MESSAGE_BYTES: usize = 4_096;
/// Bytes of an agent's message for people.
pub const MAX_MESSAGE_BYTES: usize = 512;
/// Voters of a broker group. More voters slow down writes and add little safety.
pub const MAX_VOTERS: usize = 7;
/// Brokers that a group has ever had, including removed ones.
pub const MAX_BROKERS: usize = 1_024;
/// How far counters skip ahead when a group is recovered from a backup: far more than a group counts between two
/// backups.
pub const RECOVERY_GAP: u64 = 1 << 20;
/// How far the generation of an offer may lie above the last one. Agents count from that, so they never come near it.
/// Without it one forged offer with the highest generation would be the cluster's last.
pub const MAX_GENERATION_STEP: u64 = 1 << 32;
