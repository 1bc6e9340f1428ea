//! Other settings, between two turns of the service thread.

use super::Service;
use crate::settings::Settings;

impl Service {
    /// Uses these settings from now on. What is fixed when a node is opened stays as it is.
    pub(super) fn reload(&mut self, settings: Settings) {
        self.settings = settings;
    }
}
