//! Why a request waits.

use comity_proto::v1;
use serde::Serialize;

use super::donor_verdict::{DonorVerdict, donors_table};
use super::earliest_start::EarliestStart;
use super::quote_view::Alternative;
use super::reclaimed_leases::Reclaims;
use super::request_view::Request;
use super::value::{non_empty, non_zero};
use crate::output::{Answer, Sheet, fields};
use crate::units::age;

/// Why a request waits.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The request.
    pub request: Request,
    /// Summary in one sentence.
    pub summary: String,
    /// A verdict per donor.
    pub donors: Vec<DonorVerdict>,
    /// Its position in the queue; none unless it waits.
    pub position: Option<QueuePosition>,
    /// Leases that are being reclaimed for it, or would be next.
    pub reclaims: Option<Reclaims>,
    /// Request templates from which a request could start sooner, the soonest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Alternative>,
    /// Revision of the state that this describes.
    pub revision: u64,
}

/// The position of a waiting request in the queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueuePosition {
    /// Position in the queue, from 1; 0 before its start window opens.
    pub place: u32,
    /// Requests that wait.
    pub waiting: u32,
    /// Its tenant's share of present and past use among the tenants that wait or hold leases, in millionths.
    pub share_ppm: u64,
    /// The share of it that its tenant is entitled to, in millionths.
    pub entitled_ppm: u64,
    /// Request that has the reservation.
    pub reserved_for: Option<String>,
    /// When that request can start.
    pub reserved_from_ms: Option<u64>,
    /// Donor of the reservation.
    pub reserved_donor: Option<String>,
    /// When this request could start if all leases end as they stand.
    pub earliest_ms: Option<u64>,
    /// Donor of that start.
    pub earliest_donor: Option<String>,
    /// Whether its start window closes before, so that it fails.
    pub too_late: bool,
}

impl From<v1::QueuePosition> for QueuePosition {
    fn from(position: v1::QueuePosition) -> Self {
        Self {
            place: position.place,
            waiting: position.waiting,
            share_ppm: position.share_ppm,
            entitled_ppm: position.entitled_ppm,
            reserved_for: non_empty(position.reserved_for),
            reserved_from_ms: non_zero(position.reserved_from_ms),
            reserved_donor: non_empty(position.reserved_donor),
            earliest_ms: non_zero(position.earliest_ms),
            earliest_donor: non_empty(position.earliest_donor),
            too_late: position.too_late,
        }
    }
}

impl QueuePosition {
    fn fields(&self, reclaims: Option<&Reclaims>, now_ms: u64) -> [(&'static str, String); 4] {
        let earliest = EarliestStart {
            at_ms: self.earliest_ms,
            donor: self.earliest_donor.as_deref(),
            too_late: self.too_late,
            reclaims,
        };
        let position = match self.place {
            0 => "none: it may not start yet".to_owned(),
            place => format!("{place} of {}", self.waiting),
        };
        let reserved = self.reserved_for.as_ref().map(|request| {
            let donor = self.reserved_donor.as_deref().unwrap_or_default();
            format!("room at {donor} for {request}, free {}", age(self.reserved_from_ms.unwrap_or(0), now_ms))
        });
        [
            ("Position", position),
            ("Share", format!("{} of {} entitled", percent(self.share_ppm), percent(self.entitled_ppm))),
            ("Reserved", reserved.unwrap_or_default()),
            ("Earliest", earliest.text(now_ms)),
        ]
    }
}

fn percent(ppm: u64) -> String {
    format!("{}.{} %", ppm / 10_000, ppm % 10_000 / 1_000)
}

impl From<v1::ExplainRequestResponse> for Explanation {
    fn from(response: v1::ExplainRequestResponse) -> Self {
        Self {
            request: response.request.unwrap_or_default().into(),
            summary: response.summary,
            donors: response.donors.into_iter().map(DonorVerdict::from).collect(),
            position: response.position.map(QueuePosition::from),
            reclaims: response.reclaims.map(Reclaims::from),
            alternatives: response.alternatives.into_iter().map(Alternative::from).collect(),
            revision: response.revision,
        }
    }
}

impl Answer for Explanation {
    fn table(&self, now_ms: u64) -> Sheet {
        let mut head = vec![
            ("Request", self.request.id.clone().unwrap_or_default()),
            ("State", self.request.state.as_str().to_owned()),
            ("GPUs", self.request.spec.gpus_summary()),
            ("Summary", self.summary.clone()),
        ];
        head.extend(self.position.iter().flat_map(|position| position.fields(self.reclaims.as_ref(), now_ms)));
        head.extend(self.reclaims.iter().map(|it| ("Reclaimed", it.summary(now_ms))));
        head.extend(self.alternatives.iter().map(|it| ("Instead", it.summary(now_ms))));
        fields(&head).gap().then(donors_table(&self.donors))
    }
}
