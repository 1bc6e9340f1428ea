//! MQTT 3.1.1 with QoS 0 (nothing acknowledged) or QoS 1 (each hop acknowledges to the one before it).

use crate::side::Side;
use crate::versus::client::{Link, Over, Protocol};

const CONNACK: u8 = 0x20;
const PUBLISH: u8 = 0x30;
const PUBACK: u8 = 0x40;
const SUBACK: u8 = 0x90;
/// Most messages with QoS 1 that the publisher has under way: what mosquitto itself allows towards a subscriber, so that it drops none.
const WINDOW: usize = 20;

pub(crate) struct Mqtt {
    link: Link,
    qos: u8,
    /// Identifier of the last message, from 1 to 65535.
    last: u16,
    under_way: usize,
    /// Acknowledgements that are owed; written when nothing more is there to be read.
    owed: Vec<u8>,
}

impl Mqtt {
    pub(crate) fn new(side: &Side, qos: u8) -> Result<Self, String> {
        let broker = side.broker.ok_or("a client of MQTT needs --broker")?;
        let mut mqtt = Self { link: Link::new(broker)?, qos, last: 0, under_way: 0, owed: Vec::new() };
        // Protocol level 4, clean session, no keep-alive, a name of the broker's choice.
        let connect = [&[0x10, 12, 0, 4][..], b"MQTT", &[4, 2, 0, 0, 0, 0]].concat();
        let met = mqtt.link.write(&connect).and_then(|()| mqtt.answer(CONNACK)).and_then(|code| {
            if code[1] == 0 { Ok(()) } else { Err(Over::Broken(format!("the broker refuses us: {code:?}"))) }
        });
        match met {
            Ok(()) => Ok(mqtt),
            Err(Over::Told) => Err("told to end before it began".to_owned()),
            Err(Over::Broken(why)) => Err(why),
        }
    }

    /// The next packet's first byte and length; its head is consumed.
    fn head(&mut self) -> Result<(u8, usize), Over> {
        self.link.need(2)?;
        let (mut len, mut at) = (0, 1);
        loop {
            self.link.need(at + 1)?;
            let byte = self.link.ready()[at];
            len |= usize::from(byte & 0x7f) << (7 * (at - 1));
            at += 1;
            if byte & 0x80 == 0 {
                break;
            }
            if at > 4 {
                return Err(Over::Broken("the broker sends no MQTT".to_owned()));
            }
        }
        let first = self.link.ready()[0];
        self.link.consume(at);
        Ok((first, len))
    }

    /// Body of the answer that must come next, but for acknowledgements.
    fn answer(&mut self, wanted: u8) -> Result<Vec<u8>, Over> {
        loop {
            let (first, len) = self.head()?;
            if first & 0xf0 == wanted {
                self.link.need(len)?;
                let body = self.link.ready()[..len].to_vec();
                self.link.consume(len);
                return Ok(body);
            }
            self.other(first, len)?;
        }
    }

    fn other(&mut self, first: u8, len: usize) -> Result<(), Over> {
        if first & 0xf0 == PUBACK {
            self.under_way = self.under_way.saturating_sub(1);
        }
        self.link.skip(len)
    }
}

fn length(mut len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(len & 0x7f).unwrap_or(0);
        len >>= 7;
        bytes.push(low | if len > 0 { 0x80 } else { 0 });
        if len == 0 {
            return bytes;
        }
    }
}

fn text(text: &str) -> Vec<u8> {
    let len = u16::try_from(text.len()).unwrap_or(u16::MAX);
    [&len.to_be_bytes()[..], text.as_bytes()].concat()
}

impl Protocol for Mqtt {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    fn subscribe(&mut self, subject: &str) -> Result<(), Over> {
        let body = [&[0, 1][..], &text(subject), &[self.qos]].concat();
        self.link.write(&[&[0x82][..], &length(body.len()), &body].concat())?;
        let granted = self.answer(SUBACK)?;
        if granted.get(2) == Some(&self.qos) {
            return Ok(());
        }
        Err(Over::Broken(format!("the broker refuses the subscription: {granted:?}")))
    }

    fn frame(&self, subject: &str, len: usize) -> (Vec<u8>, Vec<u8>) {
        let topic = text(subject);
        let id: &[u8] = if self.qos > 0 { &[0, 0] } else { &[] };
        let all = topic.len() + id.len() + len;
        ([&[PUBLISH | self.qos << 1][..], &length(all), &topic, id].concat(), Vec::new())
    }

    fn stamp(&mut self) -> Option<u16> {
        if self.qos == 0 {
            return None;
        }
        self.last = self.last.checked_add(1).unwrap_or(1);
        Some(self.last)
    }

    fn admit(&mut self, messages: usize) -> Result<(), Over> {
        if self.qos == 0 {
            return Ok(());
        }
        while self.under_way + messages > WINDOW {
            let (first, len) = self.head()?;
            self.other(first, len)?;
        }
        self.under_way += messages;
        Ok(())
    }

    fn window(&self) -> usize {
        if self.qos == 0 { usize::MAX } else { WINDOW }
    }

    fn next(&mut self) -> Result<u64, Over> {
        loop {
            if !self.owed.is_empty() && self.link.ready().is_empty() {
                let owed = std::mem::take(&mut self.owed);
                self.link.write(&owed)?;
            }
            let (first, len) = self.head()?;
            if first & 0xf0 != PUBLISH {
                self.other(first, len)?;
                continue;
            }
            self.link.need(2)?;
            let topic = self.link.ready().first_chunk().map_or(0, |n| u16::from_be_bytes(*n));
            let topic = 2 + usize::from(topic);
            self.link.skip(topic)?;
            let mut before = topic;
            if first & 0x06 != 0 {
                self.link.need(2)?;
                self.owed.extend_from_slice(&[PUBACK, 2]);
                self.owed.extend_from_slice(&self.link.ready()[..2]);
                self.link.consume(2);
                before += 2;
            }
            return self.link.payload(len.saturating_sub(before));
        }
    }
}
