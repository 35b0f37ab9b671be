"""A lending library that lends tools and tents: the small world that the sample agent works in.

The tools really run against the state of a Library, and the reward of an attempt is whether the
changes that it made are exactly those that its task asks for. Nothing here is random.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

MEMBERS = {
    "ana.lima@example.org": {"member_id": "M-1001", "name": "Ana Lima", "fees": 0},
    "noah.brown@example.org": {"member_id": "M-1002", "name": "Noah Brown", "fees": 0},
    "mei.tanaka@example.org": {"member_id": "M-1003", "name": "Mei Tanaka", "fees": 0},
    "omar.haddad@example.org": {"member_id": "M-1004", "name": "Omar Haddad", "fees": 0},
    "sara.novak@example.org": {"member_id": "M-1005", "name": "Sara Novak", "fees": 14},
    "jonas.weber@example.org": {"member_id": "M-1006", "name": "Jonas Weber", "fees": 0},
}
ITEMS = {
    "I-101": {"title": "Cordless drill", "price_per_day": 2},
    "I-102": {"title": "Hammer drill", "price_per_day": 3},
    "I-110": {"title": "Tent, 2 people", "price_per_day": 3},
    "I-111": {"title": "Tent, 4 people", "price_per_day": 4},
    "I-112": {"title": "Tent, 6 people", "price_per_day": 5},
    "I-115": {"title": "Camping stove", "price_per_day": 2},
    "I-120": {"title": "Projector", "price_per_day": 5},
    "I-130": {"title": "Step ladder, 2 m", "price_per_day": 1},
    "I-131": {"title": "Aluminium ladder, 5 m", "price_per_day": 2},
    "I-140": {"title": "Cargo bike", "price_per_day": 6},
}
LOANS = {
    "L-301": {"member_id": "M-1001", "item_id": "I-101", "due_date": "2026-03-04"},
    "L-302": {"member_id": "M-1004", "item_id": "I-130", "due_date": "2026-03-03"},
    "L-303": {"member_id": "M-1005", "item_id": "I-102", "due_date": "2026-03-05"},
}
RESERVATIONS = {
    "R-501": ("M-1003", "I-120", "2026-03-12", "2026-03-14"),
    "R-502": ("M-1006", "I-140", "2026-03-07", "2026-03-08"),
    "R-503": ("M-1001", "I-130", "2026-03-04", "2026-03-08"),
    "R-504": ("M-1003", "I-112", "2026-03-05", "2026-03-10"),
}


def _tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    properties = {
        key: {"type": "integer" if key == "days" else "string", "description": text}
        for key, text in parameters.items()
    }
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


_DAYS = {"start_date": "First day, such as 2026-03-06.", "end_date": "Last day."}
TOOLS = [
    _tool("find_member", "Find a member.", email="Email address of the member."),
    _tool("list_loans", "List the open loans of a member.", member_id="Such as M-1000."),
    _tool("list_reservations", "List the reservations of a member.", member_id="Such as M-1000."),
    _tool("search_items", "Search the catalogue by title.", query="One word of the title."),
    _tool("check_item", "Tell whether an item is free.", item_id="Such as I-100.", **_DAYS),
    _tool("reserve_item", "Reserve an item.", member_id="Member.", item_id="Item.", **_DAYS),
    _tool("cancel_reservation", "Cancel a reservation.", reservation_id="Such as R-500."),
    _tool("extend_loan", "Extend a loan.", loan_id="Such as L-300.", days="At most 7."),
    _tool("hand_over", "Pass the member on to the staff.", summary="What it is about."),
]


@dataclass(slots=True)
class Library:
    """The state of the library for one attempt, and the changes that the attempt made."""

    loans: dict[str, dict[str, str]] = field(default_factory=lambda: copy.deepcopy(LOANS))
    reservations: dict[str, tuple[str, ...]] = field(default_factory=lambda: dict(RESERVATIONS))
    changes: list[tuple[Any, ...]] = field(default_factory=list)

    def run(self, name: str, arguments: dict[str, Any]) -> str:
        """Run one tool and return its result, or its error, as JSON text."""
        return json.dumps(getattr(self, name)(**arguments))

    def find_member(self, email: str) -> dict[str, Any]:
        """Return id, name and fees."""
        return MEMBERS.get(email) or {"error": "no member has this email address"}

    def list_loans(self, member_id: str) -> list[dict[str, Any]]:
        """Return the member's loans with their titles."""
        return [
            {"loan_id": key, "title": ITEMS[loan["item_id"]]["title"], "due_date": loan["due_date"]}
            for key, loan in self.loans.items()
            if loan["member_id"] == member_id
        ]

    def list_reservations(self, member_id: str) -> list[dict[str, Any]]:
        """Return the member's reservations with their titles."""
        return [
            {
                "reservation_id": key,
                "title": ITEMS[item]["title"],
                "start_date": start,
                "end_date": end,
            }
            for key, (member, item, start, end) in self.reservations.items()
            if member == member_id
        ]

    def search_items(self, query: str) -> list[dict[str, Any]]:
        """Return the items whose title holds the query."""
        return [
            {"item_id": key, **item}
            for key, item in ITEMS.items()
            if query.lower() in item["title"].lower()
        ]

    def check_item(self, item_id: str, start_date: str, end_date: str) -> dict[str, Any]:
        """Tell whether nobody has the item on these days."""
        return {"item_id": item_id, "available": self._free(item_id, start_date, end_date)}

    def reserve_item(
        self, member_id: str, item_id: str, start_date: str, end_date: str
    ) -> dict[str, Any]:
        """Reserve an item if it is free."""
        if not self._free(item_id, start_date, end_date):
            return {"error": "the item is not available on these days"}
        key = f"R-{505 + sum(change[0] == 'reserve' for change in self.changes)}"
        self.reservations[key] = (member_id, item_id, start_date, end_date)
        self.changes.append(("reserve", member_id, item_id, start_date, end_date))
        days = (date.fromisoformat(end_date) - date.fromisoformat(start_date)).days + 1
        total = days * ITEMS[item_id]["price_per_day"]
        return {"reservation_id": key, "status": "confirmed", "total": total}

    def cancel_reservation(self, reservation_id: str) -> dict[str, Any]:
        """Cancel a reservation that exists."""
        if self.reservations.pop(reservation_id, None) is None:
            return {"error": "there is no such reservation"}
        self.changes.append(("cancel", reservation_id))
        return {"reservation_id": reservation_id, "status": "cancelled"}

    def extend_loan(self, loan_id: str, days: int) -> dict[str, Any]:
        """Extend a loan unless another member has reserved the item."""
        loan = self.loans[loan_id]
        due = date.fromisoformat(loan["due_date"])
        end = (due + timedelta(days=days)).isoformat()
        start = (due + timedelta(days=1)).isoformat()
        if days > 7 or self._reserved(loan["item_id"], start, end):
            return {"error": "the item is reserved by another member"}
        loan["due_date"] = end
        self.changes.append(("extend", loan_id, days))
        return {"loan_id": loan_id, "due_date": end}

    def hand_over(self, summary: str) -> dict[str, Any]:
        """Put the member into the queue of the staff."""
        self.changes.append(("hand_over",))
        return {"status": "queued", "summary": summary}

    def _free(self, item_id: str, start: str, end: str) -> bool:
        lent = any(
            loan["item_id"] == item_id and start <= loan["due_date"] for loan in self.loans.values()
        )
        return not lent and not self._reserved(item_id, start, end)

    def _reserved(self, item_id: str, start: str, end: str) -> bool:
        return any(
            item == item_id and start <= last and first <= end
            for _, item, first, last in self.reservations.values()
        )
