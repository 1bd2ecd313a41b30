//! Scaffolding shared by the broker, the agent and the CLI: who a process is, how it speaks to the
//! others, and how it starts, tells what it does, and stops.
//!
//! What this crate never does: decide anything about leases, policy or placement; speak a Comity
//! RPC; keep a secret in a log, an error or a `Debug` output.
//!
//! ```text
//!   CertificateAuthority ──issues──▶ IdentityDir ──loads──▶ IdentitySource ──watch──┬──▶ ServerTls ──▶ incoming()
//!          ▲                            (disk)               (renewals go in here)  └──▶ ClientTls ──▶ connect()
//!          └── CSR of KeyAndCsr, SPIFFE id chosen by the broker, never by the CSR
//! ```
//!
//! Trust: one federation, one root certificate, one trust domain. A peer is the SPIFFE id in its
//! verified certificate and nothing else; DNS names and addresses prove nothing here.

pub mod admin;
pub mod atomic_file;
pub mod backoff;
pub mod ca;
pub mod clock;
pub mod crypto;
pub mod entropy;
pub mod identity;
pub mod join_token;
pub mod memory;
pub mod private_files;
pub mod secret;
pub mod shutdown;
pub mod signing;
pub mod spiffe;
pub mod telemetry;
pub mod tls;

pub use admin::{AdminServer, BuildInfo, Readiness, ReadinessGuard};
pub use backoff::Backoff;
pub use ca::{CertificateAuthority, CsrDer, IssuedCertificate, KeyAndCsr};
pub use clock::{Clock, ManualClock, SystemClock};
pub use crypto::install_crypto_provider;
pub use entropy::{Entropy, SeededEntropy, SystemEntropy};
pub use identity::{IdentityDir, IdentityPem, IdentitySource, RootHash, Roots, TlsIdentity};
pub use join_token::JoinToken;
pub use secret::{Secret, SecretBytes, SecretString};
pub use shutdown::Shutdown;
pub use signing::{IdentityKey, IdentityPublicKey, IdentitySignature};
pub use spiffe::{ClusterName, SpiffeId, SpiffeKind, TrustDomain, UserName};
pub use telemetry::{LogFormat, TelemetryConfig, TelemetryGuard};
pub use tls::{BrokerChannel, BrokerEndpoints, ClientTls, PeerInfo, ServerTls, connect, incoming};
