//! Infrastructure shared by the broker, the agent and the CLI: identities, mutual TLS, secrets, telemetry and shutdown.
//!
//! This crate knows nothing of leases, policy, placement or Comity RPCs, and writes no secret to a log, an error or a
//! `Debug` output.
//!
//! ```text
//!   RootAuthority ──signs, offline──▶ CertificateAuthority (an intermediate, on brokers)
//!   CertificateAuthority ──issues──▶ IdentityDir ──loads──▶ IdentitySource ──watch──┬──▶ ServerTls ──▶ incoming()
//!          ▲                            (disk)               (receives renewals)  └──▶ ClientTls ──▶ connect()
//!          └── CSR of KeyAndCsr, SPIFFE id chosen by the broker, never by the CSR
//! ```
//!
//! Trust: a federation has one trust domain and one root certificate, or two while one takes over from the other. Only the SPIFFE id in its verified certificate
//! identifies a peer to Comity's programs; DNS names and addresses in it are for other clients.

pub mod admin;
pub mod backoff;
pub mod ca;
pub mod checks;
pub mod clock;
pub mod crypto;
pub mod entropy;
pub mod files;
pub mod host_name;
pub mod identity;
pub mod join_token;
pub mod process;
pub mod sealing;
pub mod secret;
pub mod signing;
pub mod spiffe;
pub mod telemetry;
pub mod tls;

pub use admin::{AdminServer, BuildInfo, Readiness, ReadinessGuard};
pub use backoff::Backoff;
pub use ca::{CertificateAuthority, CsrDer, IssuedCertificate, KeyAndCsr, LiveAuthority, RootAuthority};
pub use clock::{Clock, ManualClock, SystemClock};
pub use crypto::install_crypto_provider;
pub use entropy::{Entropy, SeededEntropy, SystemEntropy};
pub use files::contexts::{self, CliContext, ContextError, Contexts};
pub use files::{atomic_file, private_files, strict_yaml};
pub use host_name::HostName;
pub use identity::{IdentityDir, IdentityPem, IdentitySource, RootHash, Roots, TlsIdentity, TrustedRoots};
pub use join_token::JoinToken;
pub use process::shutdown::Shutdown;
pub use process::{MisplacedSecret, help, memory, misplaced_secret, shutdown};
pub use secret::{Secret, SecretBytes, SecretString};
pub use signing::{IdentityKey, IdentityPublicKey, IdentitySignature, SigningError};
pub use spiffe::{ClusterName, SpiffeId, SpiffeKind, TrustDomain, UserName};
pub use telemetry::{LogFormat, TelemetryConfig, TelemetryGuard};
pub use tls::{BrokerChannel, BrokerEndpoints, ClientTls, KnownBrokers, PeerInfo, ServerTls, connect, incoming};
