//! Why a request waits, and what would happen to one.

use comity_proto::v1;
use serde::Serialize;

use super::placement::Placement;
use super::request::Request;
use super::text;
use crate::output::{Answer, columns, fields};

/// One donor's answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DonorVerdict {
    /// Donor.
    pub donor: String,
    /// Whether the request fits there now.
    pub fits: bool,
    /// Stable code of the first reason against it.
    pub code: Option<String>,
    /// That reason.
    pub reason: Option<String>,
    /// What would unblock it.
    pub unblock: Option<String>,
    /// Policy documents behind it.
    pub by: Vec<String>,
}

impl From<v1::DonorVerdict> for DonorVerdict {
    fn from(verdict: v1::DonorVerdict) -> Self {
        Self {
            donor: verdict.donor,
            fits: verdict.fits,
            code: text(verdict.code),
            reason: text(verdict.reason),
            unblock: text(verdict.unblock),
            by: verdict.by,
        }
    }
}

fn donors(verdicts: &[DonorVerdict]) -> String {
    if verdicts.is_empty() {
        return String::new();
    }
    let row = |verdict: &DonorVerdict| {
        vec![
            verdict.donor.clone(),
            if verdict.fits { "yes".to_owned() } else { "no".to_owned() },
            verdict.reason.clone().unwrap_or_default(),
            verdict.unblock.clone().unwrap_or_default(),
            verdict.by.join(", "),
        ]
    };
    columns(
        &["donor", "fits", "first reason against it", "what would unblock it", "by"],
        verdicts.iter().map(row).collect(),
        "",
    )
}

/// Why a request waits.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The request.
    pub request: Request,
    /// One sentence.
    pub summary: String,
    /// By donor.
    pub donors: Vec<DonorVerdict>,
    /// Revision it was computed at.
    pub revision: u64,
}

impl From<v1::ExplainRequestResponse> for Explanation {
    fn from(response: v1::ExplainRequestResponse) -> Self {
        Self {
            request: response.request.unwrap_or_default().into(),
            summary: response.summary,
            donors: response.donors.into_iter().map(DonorVerdict::from).collect(),
            revision: response.revision,
        }
    }
}

impl Answer for Explanation {
    fn table(&self, _now_ms: u64) -> String {
        let head = fields(&[
            ("Request", self.request.id.clone().unwrap_or_default()),
            ("State", self.request.state.as_str().to_owned()),
            ("GPUs", self.request.spec.gpus.summary()),
            ("Summary", self.summary.clone()),
        ]);
        format!("{head}\n{}", donors(&self.donors))
    }
}

/// What would happen.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Quote {
    /// One sentence.
    pub summary: String,
    /// Where it would be placed.
    pub placement: Option<Placement>,
    /// Price for the whole term in thousandths of a credit.
    pub price_milli_credits: u64,
    /// By donor.
    pub donors: Vec<DonorVerdict>,
}

impl From<v1::QuoteRequestResponse> for Quote {
    fn from(response: v1::QuoteRequestResponse) -> Self {
        Self {
            summary: response.summary,
            placement: response.placement.map(Placement::from),
            price_milli_credits: response.price_milli_credits,
            donors: response.donors.into_iter().map(DonorVerdict::from).collect(),
        }
    }
}

impl Answer for Quote {
    fn table(&self, _now_ms: u64) -> String {
        let head = fields(&[
            ("Summary", self.summary.clone()),
            ("Placement", self.placement.as_ref().map(Placement::summary).unwrap_or_else(|| "nowhere now".to_owned())),
            ("Price", format!("{} credits", super::gpus(self.price_milli_credits))),
        ]);
        format!("{head}\n{}", donors(&self.donors))
    }
}
