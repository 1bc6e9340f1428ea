//! A browser as a test holds it: headless Chromium, spoken to in the DevTools protocol over two pipes.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use serde_json::{Value, json};

use crate::ledger::process::{PATIENCE, Scratch};
use crate::skip::Unavailable;

/// Names under which Chromium is installed.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let all = std::env::split_paths(&path).flat_map(|dir| NAMES.map(|name| dir.join(name)));
    all.into_iter().find(|program| program.is_file())
}

/// The bytes of a text in base64, padding left out.
fn from_base64(text: &str) -> Vec<u8> {
    let value = |digit: u8| match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Vec<u32> = text.bytes().filter_map(value).map(u32::from).collect();
    let group = |four: &[u32]| {
        let bits = four.iter().enumerate().fold(0, |bits, (i, digit)| bits | digit << (18 - 6 * i));
        bits.to_be_bytes()[1..four.len()].to_vec()
    };
    digits.chunks(4).flat_map(group).collect()
}

/// One tab of a headless browser, which ends with its value.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    session: String,
    last: u64,
    complaints: Vec<String>,
    asked: Vec<String>,
}

impl Browser {
    /// Starts it, with a profile of its own in `scratch`.
    ///
    /// # Errors
    /// There is no Chromium on this machine.
    ///
    /// # Panics
    /// There is one, and it does not start.
    pub fn start(scratch: &Scratch) -> Result<Self, Unavailable> {
        let program = program().ok_or_else(|| Unavailable::because("no chromium"))?;
        // It reads commands from descriptor 3 and answers to 4: a shell makes them of those that Rust can hand over.
        let mut command = Command::new("sh");
        command.args(["-c", r#"exec "$@" 3<&0 4>&1 </dev/null >/dev/null"#, "sh"]).arg(program);
        // Without a sandbox, because tests may run as root, and in containers; it sees nothing but our own page.
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
        command.args(["--hide-scrollbars", "--no-first-run", "--disable-background-networking"]);
        command.arg(format!("--user-data-dir={}", scratch.path().join("browser").display()));
        command.args(["--remote-debugging-pipe", "about:blank"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell starts");
        let to = child.stdin.take().expect("piped");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).split(0);
        let (sink, from) = channel();
        std::thread::spawn(move || {
            lines.try_for_each(|message| {
                let message = message.ok().and_then(|text| serde_json::from_slice(&text).ok());
                message.and_then(|message: Value| sink.send(message).ok())
            })
        });
        let none = Vec::new;
        let mut browser =
            Self { child, to, from, session: String::new(), last: 0, complaints: none(), asked: none() };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Runtime", "Log", "Page", "Network", "Accessibility"] {
            let _ = browser.call(&format!("{domain}.enable"), json!({}));
        }
        Ok(browser)
    }

    /// One command of the protocol, and its result.
    ///
    /// # Panics
    /// It fails, or the browser dies.
    #[track_caller]
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut command = json!({"id": self.last, "method": method, "params": params});
        if !self.session.is_empty() {
            command["sessionId"] = self.session.as_str().into();
        }
        let text = [command.to_string().as_bytes(), b"\0"].concat();
        self.to.write_all(&text).expect("the browser takes commands");
        loop {
            let message = self.from.recv_timeout(PATIENCE);
            let mut message =
                message.unwrap_or_else(|e| panic!("{method}: the browser does not answer: {e}"));
            if message["id"] == self.last {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].take();
            }
            self.note(&message);
        }
    }

    /// Keeps what a page should not do, and what it fetches.
    fn note(&mut self, message: &Value) {
        let params = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.complaints.push(params["exceptionDetails"].to_string()),
            Some("Log.entryAdded") => self.complaints.push(params["entry"]["text"].to_string()),
            Some("Network.requestWillBeSent") => {
                self.asked.extend(params["request"]["url"].as_str().map(str::to_owned));
            }
            _ => {}
        }
    }

    /// Exceptions that no script caught, and what the console said on its own account (refused by a policy, not found), so far.
    #[must_use]
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// Addresses of all that was fetched.
    #[must_use]
    pub fn fetched(&self) -> &[String] {
        &self.asked
    }

    /// Goes to an address, in a window of `width` CSS pixels.
    #[track_caller]
    pub fn open(&mut self, url: &str, width: u32) {
        self.window(width, 1000);
        let gone = self.call("Page.navigate", json!({"url": url}));
        assert!(gone["errorText"].is_null(), "{url}: {gone}");
    }

    /// Makes the window as large, in CSS pixels.
    #[track_caller]
    pub fn window(&mut self, width: u32, height: u32) {
        let window = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        let _ = self.call("Emulation.setDeviceMetricsOverride", window);
    }

    /// What the system would say that it prefers: `light` or `dark`.
    #[track_caller]
    pub fn prefer(&mut self, scheme: &str) {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        let _ = self.call("Emulation.setEmulatedMedia", features);
    }

    /// The value of a JavaScript expression in the page.
    ///
    /// # Panics
    /// It throws.
    #[track_caller]
    pub fn eval(&mut self, expression: &str) -> Value {
        let ask = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut result = self.call("Runtime.evaluate", ask);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        result["result"]["value"].take()
    }

    /// Waits until an expression is true, which nothing announces.
    ///
    /// # Panics
    /// It never is.
    #[track_caller]
    pub fn until(&mut self, expression: &str) {
        let since = Instant::now();
        while self.eval(expression) != true {
            if since.elapsed() > PATIENCE {
                let shown = self.eval("document.body.innerText");
                panic!("never: {expression}\n{:#?}\n{}", self.complaints, shown.as_str().unwrap_or_default());
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Presses and releases a key: a character, or `Tab`, `Enter`, `Escape`, `ArrowLeft`...
    #[track_caller]
    pub fn key(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            "ArrowLeft" => (37, ""),
            "ArrowRight" => (39, ""),
            one => (0, one),
        };
        let mut event = json!({"type": "keyDown", "key": key, "windowsVirtualKeyCode": code});
        if !text.is_empty() {
            event["text"] = text.into();
        }
        let _ = self.call("Input.dispatchKeyEvent", event);
        let up = json!({"type": "keyUp", "key": key, "windowsVirtualKeyCode": code});
        let _ = self.call("Input.dispatchKeyEvent", up);
    }

    /// What the window shows, as PNG.
    #[track_caller]
    pub fn picture(&mut self) -> Vec<u8> {
        let shot = self.call("Page.captureScreenshot", json!({"format": "png"}));
        from_base64(shot["data"].as_str().expect("a picture"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its processes end with it; it may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn base64_is_read_with_each_length_of_its_last_group() {
        for (text, bytes) in [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYmE=", "fooba")]
        {
            assert_eq!(super::from_base64(text), bytes.as_bytes(), "{text}");
        }
    }
}
