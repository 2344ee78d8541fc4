//! Messages in communication queues, slots and links.

use super::engine::{EventKind, MessageProgress, NEVER, QueueState, Simulation};
use super::messages::{MessageLane, NONE, QueueEntry};
use super::sharing::Pace;
use super::{Observer, Put, Sharing, TransferTime};
use pipesim_schedule::delivery::Delivery;

impl<'a, L: Fn(usize, u32, u64, u64) -> u64, O: Observer> Simulation<'a, L, O> {
    /// Whether the op that makes a message has ended.
    pub(super) fn is_queued(&self, message: u32) -> bool {
        self.progress[message as usize].queued != NEVER
    }

    pub(super) fn head(&self, queue: usize) -> Option<QueueEntry> {
        let QueueState { next, end, .. } = self.queues[queue];
        (next < end).then(|| self.messages.entries[next as usize])
    }

    /// Returns the group at the head of a queue if all messages that it sends are made; else nothing.
    fn group(&self, queue: usize) -> &'a [QueueEntry] {
        let (QueueState { next, end, .. }, messages) = (self.queues[queue], self.messages);
        if next == end {
            return &[];
        }
        let group = &messages.entries[next as usize..messages.group_end(next) as usize];
        if group.iter().all(|entry| entry.receives || self.is_queued(entry.message)) { group } else { &[] }
    }

    /// Launches the messages of the group at the head of a queue whose partners are posted.
    fn meet(&mut self, queue: usize) {
        for &QueueEntry { message, receives } in self.group(queue) {
            let &MessageLane { send_queue, receive_queue, .. } = self.lane(message);
            let partner = if receives { send_queue } else { receive_queue } as usize;
            let is_under_way = self.progress[message as usize].start != NEVER;
            if !is_under_way && self.group(partner).contains(&QueueEntry { message, receives: !receives }) {
                // Provisional, until it begins to leave.
                self.progress[message as usize].start = self.now;
                self.launch(message);
            }
        }
    }

    /// Handles a message that is ready to be sent.
    pub(super) fn enqueue(&mut self, message: u32) {
        self.progress[message as usize].queued = self.now;
        match self.lane(message).send_queue {
            NONE => _ = self.launch(message),
            queue => self.advance(queue as usize),
        }
    }

    /// Sends messages of a queue as far as possible.
    pub(super) fn advance(&mut self, queue: usize) {
        if self.messages.meet {
            return self.meet(queue);
        }
        while let Some(QueueEntry { message, .. }) = self.head(queue) {
            if self.queues[queue].busy || !self.is_queued(message) {
                return;
            }
            let &MessageLane { channel, .. } = self.lane(message);
            let slots = match self.prepared.config.delivery {
                Delivery::Buffered(slots) => slots,
                _ => self.prepared.config.slots.unwrap_or(u32::MAX),
            };
            if self.held[channel as usize] >= slots {
                return;
            }
            self.held[channel as usize] += 1;
            let gone = self.launch(message);
            if self.prepared.config.delivery == Delivery::OneSided || gone {
                self.queues[queue].next += 1;
            } else {
                self.queues[queue].busy = true;
            }
        }
    }

    /// Frees the slot of the message that `op`, which has ended, used.
    pub(super) fn release_slot(&mut self, op: usize) {
        let message = self.messages.input[op];
        if message == NONE {
            return;
        }
        let &MessageLane { channel, send_queue, receive_queue, .. } = self.lane(message);
        if send_queue != NONE && receive_queue == NONE {
            self.held[channel as usize] -= 1;
            self.advance(send_queue as usize);
        }
    }

    /// Brings a message to its link. Returns whether it has left its sender.
    fn launch(&mut self, message: u32) -> bool {
        let &MessageLane { link, from, transfer: ticks, .. } = self.lane(message);
        match self.prepared.config.network.sharing {
            Sharing::Unlimited if ticks == 0 && self.prepared.config.network.put != Put::Holding => {
                self.begin(message);
                self.travel(message);
                return true;
            }
            Sharing::Unlimited => {
                self.begin(message);
                // No turn: `which` is the message itself.
                self.schedule(self.now + ticks, from, EventKind::Through, message, 0);
            }
            Sharing::FirstComeFirstServed => {
                if self.links[link as usize].join(message, ticks) {
                    self.serve(link);
                }
            }
            Sharing::FairShare => {
                self.begin(message);
                let (now, pace) = (self.now, self.pace());
                self.links[link as usize].share(now, message, ticks, pace);
                self.expect(link, from);
            }
        }
        false
    }

    /// Starts the transfer of the first message in the line of `link`.
    fn serve(&mut self, link: u32) {
        if let Some((message, ticks)) = self.links[link as usize].served() {
            self.begin(message);
            self.schedule(self.now + ticks, self.lane(message).from, EventKind::Through, link, 0);
        }
    }

    /// Sets the next event of a shared link.
    fn expect(&mut self, link: u32, device: u32) {
        let pace = self.pace();
        let state = &mut self.links[link as usize];
        state.turn = state.turn.wrapping_add(1);
        if let (Some(time), turn) = (state.next(pace), state.turn) {
            self.schedule(time, device, EventKind::Through, link, turn);
        }
    }

    /// Handles messages that have left a link; `which` is the link or, if links are unlimited, the message.
    pub(super) fn link_event(&mut self, which: u32, turn: u32) {
        match self.prepared.config.network.sharing {
            Sharing::Unlimited => self.leave(which),
            Sharing::FirstComeFirstServed => {
                if let Some(message) = self.links[which as usize].leave() {
                    self.serve(which);
                    self.leave(message);
                }
            }
            Sharing::FairShare => {
                if self.links[which as usize].turn != turn {
                    return; // void
                }
                let (now, pace) = (self.now, self.pace());
                let mut device = None;
                while let Some(message) = self.links[which as usize].through(now, pace) {
                    device = Some(self.lane(message).from);
                    self.leave(message);
                }
                if let Some(device) = device {
                    self.expect(which, device);
                }
            }
        }
    }

    fn begin(&mut self, message: u32) {
        self.progress[message as usize].start = self.now;
        self.change_transfers(message, 1);
    }

    /// Handles a message that has left its sender.
    fn leave(&mut self, message: u32) {
        self.travel(message);
        let &MessageLane { from, send_queue, .. } = self.lane(message);
        if self.prepared.config.network.put == Put::Holding {
            let free = self.now + self.rule(self.messages.all[message as usize].op as usize).after;
            self.schedule(free, from, EventKind::Free, 0, 0);
        }
        if let Delivery::Buffered(_) = self.prepared.config.delivery {
            self.pop(send_queue);
        }
    }

    fn pace(&self) -> Pace<'a> {
        Pace { grain: self.grain, contention: &self.prepared.config.network.contention }
    }

    fn travel(&mut self, message: u32) {
        let &MessageLane { to, latency, .. } = self.lane(message);
        self.schedule(self.now + latency, to, EventKind::Arrival, message, 0);
    }

    pub(super) fn arrive(&mut self, message: u32) {
        let &MessageLane { to, send_queue, receive_queue, .. } = self.lane(message);
        let op = self.messages.all[message as usize].op as usize;
        let MessageProgress { queued, start, .. } = self.progress[message as usize];
        self.observer.transfer(TransferTime { op, queued, start, end: self.now });
        self.change_transfers(message, -1);
        if self.messages.meet {
            self.note_there(send_queue);
            self.note_there(receive_queue);
        } else {
            self.progress[message as usize].end = self.now;
        }
        self.try_start(to);
    }

    fn pop(&mut self, queue: u32) {
        let state = &mut self.queues[queue as usize];
        state.next += 1;
        state.busy = false;
        self.advance(queue as usize);
    }

    /// Counts an arrived message of the group at the head of a queue. After the last one the received messages can be used.
    fn note_there(&mut self, queue: u32) {
        let (messages, state) = (self.messages, &mut self.queues[queue as usize]);
        state.left -= 1;
        if state.left > 0 {
            return;
        }
        let (first, end) = (state.next, state.end);
        let next = messages.group_end(first);
        *state = QueueState::new(messages, next, end);
        let mut user = None;
        for entry in messages.entries[first as usize..next as usize].iter().filter(|entry| entry.receives) {
            self.progress[entry.message as usize].end = self.now;
            user = Some(self.lane(entry.message).to);
        }
        self.advance(queue as usize);
        // The last message may belong to the other side's group, so that nothing else starts the receiver.
        if let Some(user) = user.filter(|_| next - first > 1) {
            self.try_start(user);
        }
    }

    /// Counts a message that begins (1) or ends (-1) its transit, which may slow down ops of both devices.
    fn change_transfers(&mut self, message: u32, by: i32) {
        let &MessageLane { from, to, .. } = self.lane(message);
        for device in [from, to] {
            let transfers = &mut self.devices[device as usize].transfers;
            *transfers = transfers.saturating_add_signed(by);
            if self.prepared.config.overlap_per_mille != 1000 {
                self.set_speed(device);
            }
        }
    }
}
