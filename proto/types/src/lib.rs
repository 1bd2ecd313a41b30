//! Ids, sides, deliveries, states and MIG geometry, as the broker, its agents and the CLI share them.
//!
//! Every id is well formed once parsed. The text forms are those of the API and of the broker's log, so a change here is
//! a change of format. This crate knows neither messages nor records; `comity-proto` converts from and to the enums of
//! the API.

mod data_need;
mod delivery;
mod dns_label;
mod end_reason;
mod failure_code;
mod fencing_step;
mod invalid_id;
mod label_id;
mod lease_state;
mod lease_treatment;
pub mod mig;
mod number_id;
mod peering_state;
mod printable;
mod redaction;
mod request_state;
mod sharing_mode;
mod side;

pub use data_need::{DATASET_NAME_REMEDY, DataNeed, MAX_DATASETS_PER_REQUEST, is_dataset_name};
pub use delivery::Delivery;
pub use dns_label::{is_dns_label, is_dns_subdomain};
pub use end_reason::EndReason;
pub use failure_code::{DONOR_REFUSED, LOCAL_POLICY};
pub use fencing_step::MAX_FENCING_TOKEN_STEP;
pub use invalid_id::{InvalidId, shorten};
pub use label_id::{ClassName, ClusterId, InstitutionId, NodeId, PriorityName, TemplateName, TenantId};
pub use lease_state::LeaseState;
pub use lease_treatment::LeaseTreatment;
pub use number_id::{LeaseId, PeeringId, RequestId, namespace_name};
pub use peering_state::PeeringState;
pub use printable::{is_printable, is_printable_text, is_steering, printable, printable_json, printable_line};
pub use redaction::{JOIN_TOKEN_PREFIX, find_secret, has_private_key, redact_secrets, redact_user};
pub use request_state::RequestState;
pub use sharing_mode::{Isolation, SharingMode};
pub use side::Side;
