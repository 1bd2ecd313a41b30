//! Which pods hold which device, as the kubelets report it.
//!
//! ```text
//! kubelet ─▶ comity-agent read-devices ─▶ page ─▶ DevicePages ─▶ observe: DeviceTable
//!  socket        on each node             HTTP      this agent      joined with pods, leases and claims
//! ```

mod device_page;
mod device_scraper;
mod device_table;
mod device_use;

pub(crate) use device_page::{DevicePage, MAX_READING_AGE};
pub(crate) use device_scraper::{DevicePages, ReadPage, follow};
pub use device_table::{DeviceConflict, DeviceTable, ReaderCounts};
pub use device_use::{DeviceHolder, DeviceUse, HolderOwner};
