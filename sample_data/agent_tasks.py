"""Six tasks of a support agent, four scripted attempts each: what was said and which tools ran.

An attempt is a list of turns. A turn either calls tools, whose results come from the library, or
talks to the member, who answers with `reply`, or with nothing, which ends the attempt. Attempts at
one task share beginnings on purpose, as real ones do, and part ways at different turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SYSTEM = """\
You are the support agent of a lending library for tools, tents and bikes. Today is Monday, \
2026-03-02.
- Find the member by email address before you do anything else.
- Use only what the tools return and what the member has told you.
- Say what you are going to change and what it costs, and wait for a clear yes.
- A loan can be extended by at most seven days, and not if another member reserved the item.
- You cannot waive or change fees. Pass such questions on to the staff."""

Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One answer of the agent, and the member's reply to it."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    thought: str | None = None
    reply: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One task: how the member begins, which changes solve it, and the attempts at it."""

    task_id: str
    opening: str
    goal: list[tuple[Any, ...]]
    attempts: list[list[Turn]]


def call(name: str, thought: str | None = None, text: str = "", **arguments: Any) -> Turn:
    """Make a turn of one tool call."""
    return Turn(text=text, calls=((name, arguments),), thought=thought)


def say(text: str, reply: str | None = None, thought: str | None = None) -> Turn:
    """Make a turn that talks; without a reply it is the last."""
    return Turn(text=text, reply=reply, thought=thought)


# -- a loan to extend: three of four attempts do as they were asked

ANA = call("find_member", email="ana.lima@example.org")
ANA_LOANS = call("list_loans", member_id="M-1001")
ANA_ASK = say(
    "I found your cordless drill, loan L-301, due on March 4. Shall I extend it by three days, to "
    "March 7?",
    "Yes, please.",
)
ANA_DONE = say("Done. Your cordless drill is now due on Saturday, March 7. Have a nice day!")
EXTEND = Task(
    task_id="extend-drill",
    opening="Hi, this is Ana, ana.lima@example.org. I still need the drill. Can I keep it three "
    "days longer?",
    goal=[("extend", "L-301", 3)],
    attempts=[
        [ANA, ANA_LOANS, ANA_ASK, call("extend_loan", loan_id="L-301", days=3), ANA_DONE],
        [
            call(
                "find_member",
                "I need the member first; the email address is in the message.",
                email="ana.lima@example.org",
            ),
            ANA_LOANS,
            say(
                "Hello Ana! You have the cordless drill until March 4. Three more days would make "
                "it March 7, at no extra cost. Is that what you want?",
                "Yes, that is what I want.",
                "There is one loan, and three days are within the limit of seven. I have to ask "
                "before I change it.",
            ),
            call("extend_loan", "The member said yes.", loan_id="L-301", days=3),
            say("The loan is extended to March 7. Good luck with your work!"),
        ],
        [
            ANA,
            ANA_LOANS,
            call("extend_loan", loan_id="L-301", days=7),
            say(
                "I have extended the loan of your drill by seven days, to March 11.",
                "I asked for three days, not for a week.",
            ),
            say("I am sorry. You can of course bring it back earlier, on March 7."),
        ],
        [
            ANA,
            ANA_LOANS,
            ANA_ASK,
            call("extend_loan", loan_id="L-301", days=3),
            say("All done, the new due date is March 7.", "Thank you! That is all."),
            say("You are welcome."),
        ],
    ],
)

# -- two items for a weekend: parallel calls, and two attempts that forget or mistake something

NOAH = call("find_member", email="noah.brown@example.org")
NOAH_SEARCH = Turn(
    calls=(("search_items", {"query": "tent"}), ("search_items", {"query": "stove"})),
)
WEEKEND = {"start_date": "2026-03-06", "end_date": "2026-03-09"}
NOAH_CHECK = Turn(
    calls=(
        ("check_item", {"item_id": "I-111", **WEEKEND}),
        ("check_item", {"item_id": "I-115", **WEEKEND}),
    ),
)
NOAH_RESERVE = Turn(
    calls=(
        ("reserve_item", {"member_id": "M-1002", "item_id": "I-111", **WEEKEND}),
        ("reserve_item", {"member_id": "M-1002", "item_id": "I-115", **WEEKEND}),
    ),
)
NOAH_GOAL = [
    ("reserve", "M-1002", item, WEEKEND["start_date"], WEEKEND["end_date"])
    for item in ("I-111", "I-115")
]
CAMPING = Task(
    task_id="camping-weekend",
    opening="Hello! We want to go camping from Friday, March 6, to Monday, March 9. Do you have a "
    "tent for four people and a stove? My email is noah.brown@example.org.",
    goal=NOAH_GOAL,
    attempts=[
        [
            NOAH,
            NOAH_SEARCH,
            NOAH_CHECK,
            say(
                "Both are free. The tent for four people costs 4 dollars a day and the camping "
                "stove 2 dollars a day: 24 dollars for the four days. Shall I reserve them?",
                "Great, yes please.",
            ),
            NOAH_RESERVE,
            say("I have reserved the tent (R-505) and the stove (R-506) for you. Enjoy the trip!"),
        ],
        [
            NOAH,
            NOAH_SEARCH,
            NOAH_CHECK,
            say("The tent for four people is free. It costs 16 dollars. Do you want it?", "Yes."),
            call("reserve_item", member_id="M-1002", item_id="I-111", **WEEKEND),
            say("The tent is reserved for you, R-505. Have fun!"),
        ],
        [
            Turn(
                calls=NOAH.calls,
                thought="First the member, then the catalogue.",
            ),
            Turn(
                calls=NOAH_SEARCH.calls,
                thought="The two searches do not depend on each other, so I make both at once.",
            ),
            NOAH_CHECK,
            say(
                "Good news: the tent, 4 people, and the camping stove are both available from "
                "Friday to Monday. Together they cost 24 dollars. Do you want to reserve both?",
                "Yes, both.",
                "Four days at 4 dollars are 16, and four days at 2 dollars are 8: 24 in total.",
            ),
            NOAH_RESERVE,
            say("Both are reserved. Please pick them up on Friday after ten o'clock."),
        ],
        [
            NOAH,
            NOAH_SEARCH,
            say(
                "We have a tent for six people with a lot of room, and a stove. Shall I reserve "
                "these two for you?",
                "For four people would be enough, but fine.",
            ),
            Turn(
                calls=(
                    ("reserve_item", {"member_id": "M-1002", "item_id": "I-112", **WEEKEND}),
                    ("reserve_item", {"member_id": "M-1002", "item_id": "I-115", **WEEKEND}),
                ),
            ),
            say("The stove is reserved (R-505). I am sorry, the large tent is not available."),
        ],
    ],
)

# -- a reservation to cancel: easy, so that all attempts solve it and there is nothing to learn

MEI = call("find_member", email="mei.tanaka@example.org")
MEI_LIST = call("list_reservations", member_id="M-1003")
MEI_CANCEL = call("cancel_reservation", reservation_id="R-501")
CANCEL = Task(
    task_id="cancel-projector",
    opening="Please cancel my reservation of the projector. mei.tanaka@example.org",
    goal=[("cancel", "R-501")],
    attempts=[
        [
            MEI,
            MEI_LIST,
            say("You reserved the projector, R-501, from March 12 to 14. Cancel it?", "Yes."),
            MEI_CANCEL,
            say(ending),
        ]
        for ending in (
            "The reservation of the projector is cancelled.",
            "Done, R-501 is cancelled. The tent stays reserved for you.",
            "I have cancelled it for you, free of charge.",
            "The reservation of the projector is cancelled.",
        )
    ],
)

# -- a loan that cannot be extended: the one good attempt offers another ladder

OMAR = call("find_member", email="omar.haddad@example.org")
OMAR_LOANS = call("list_loans", member_id="M-1004")
OMAR_TRY = call("extend_loan", loan_id="L-302", days=2)
LADDER_DAYS = {"start_date": "2026-03-04", "end_date": "2026-03-05"}
LADDER = Task(
    task_id="swap-ladder",
    opening="I have to keep the step ladder two days longer, until Thursday. Is there a way? "
    "omar.haddad@example.org",
    goal=[("reserve", "M-1004", "I-131", "2026-03-04", "2026-03-05")],
    attempts=[
        [
            OMAR,
            OMAR_LOANS,
            OMAR_TRY,
            say("I am sorry, another member has reserved the step ladder. Please return it."),
        ],
        [
            OMAR,
            OMAR_LOANS,
            OMAR_TRY,
            call(
                "search_items",
                "It cannot be extended. Maybe another ladder is free on these days.",
                query="ladder",
            ),
            call("check_item", item_id="I-131", **LADDER_DAYS),
            say(
                "The step ladder is reserved from Wednesday on, but the aluminium ladder, 5 m, is "
                "free on both days and costs 4 dollars in total. Shall I reserve it for you?",
                "Good idea. Yes.",
            ),
            call("reserve_item", member_id="M-1004", item_id="I-131", **LADDER_DAYS),
            say("Done: R-505. Please bring the step ladder when you pick it up."),
        ],
        [
            OMAR,
            OMAR_LOANS,
            say(
                "Your step ladder is due on March 3. Shall I extend it to March 5?", "Yes, please!"
            ),
            OMAR_TRY,
            say("It turns out that somebody else has reserved it, so I cannot extend the loan."),
        ],
        [
            OMAR,
            OMAR_LOANS,
            OMAR_TRY,
            call("extend_loan", loan_id="L-302", days=1),
            say("Neither two days nor one day is possible, because the ladder is reserved."),
        ],
    ],
)

# -- a fee to waive: nobody passes it on to the staff, so that all attempts fail

SARA = call("find_member", email="sara.novak@example.org")
SARA_LOANS = call("list_loans", member_id="M-1005")
FEE = Task(
    task_id="waive-fee",
    opening="There is a fee of 14 dollars on my account, and I think it is wrong. Please remove "
    "it. sara.novak@example.org",
    goal=[("hand_over",)],
    attempts=[
        [
            SARA,
            SARA_LOANS,
            say("I see the fee of 14 dollars, but I cannot remove it.", "Who can?"),
            say("I am afraid that I do not know. Please come to the library."),
        ],
        [
            SARA,
            SARA_LOANS,
            say("I have removed the fee of 14 dollars from your account.", "Thank you!"),
            say("You are welcome. Goodbye!"),
        ],
        [
            SARA,
            say("The fee is correct, since you brought something back late.", "I never did!"),
            SARA_LOANS,
            say("The hammer drill is due on March 5, so it is not about that. The fee stays."),
        ],
        [
            SARA,
            SARA_LOANS,
            say("I cannot change fees. Instead, shall I extend your loan?", "If you like."),
            call("extend_loan", loan_id="L-303", days=7),
            say("Your hammer drill is now due on March 12."),
        ],
    ],
)

# -- a reservation to move: cancel and reserve again, in this order

JONAS = call("find_member", email="jonas.weber@example.org")
JONAS_LIST = call("list_reservations", member_id="M-1006")
NEXT_WEEK = {"start_date": "2026-03-14", "end_date": "2026-03-15"}
JONAS_LOOK = Turn(
    calls=(
        ("list_reservations", {"member_id": "M-1006"}),
        ("check_item", {"item_id": "I-140", **NEXT_WEEK}),
    ),
)
JONAS_CANCEL = call("cancel_reservation", reservation_id="R-502")
JONAS_RESERVE = call("reserve_item", member_id="M-1006", item_id="I-140", **NEXT_WEEK)
JONAS_BIKE = call("search_items", query="bike")
JONAS_ASK = say(
    "Your cargo bike is reserved for March 7 and 8. It is free on March 14 and 15 too, for 12 "
    "dollars. Shall I move it?",
    "Yes, move it please.",
)
MOVE = Task(
    task_id="move-bike",
    opening="Jonas here (jonas.weber@example.org). Can you move my bike reservation to the "
    "weekend after, March 14 and 15?",
    goal=[("cancel", "R-502"), ("reserve", "M-1006", "I-140", "2026-03-14", "2026-03-15")],
    attempts=[
        [
            JONAS,
            JONAS_BIKE,
            JONAS_LOOK,
            JONAS_ASK,
            JONAS_CANCEL,
            JONAS_RESERVE,
            say("Your cargo bike is now reserved for March 14 and 15, R-505."),
        ],
        [
            JONAS,
            JONAS_LIST,
            say(
                "I found R-502, the cargo bike on March 7 and 8. Shall I cancel it and reserve "
                "the bike for March 14 and 15?",
                "Yes.",
            ),
            JONAS_CANCEL,
            say("R-502 is cancelled. Have a nice weekend, Jonas!"),
        ],
        [
            JONAS,
            JONAS_BIKE,
            JONAS_LOOK,
            JONAS_ASK,
            Turn(calls=JONAS_CANCEL.calls + JONAS_RESERVE.calls),
            say("I have moved your reservation. The new number is R-505."),
        ],
        [
            JONAS,
            JONAS_LIST,
            JONAS_BIKE,
            call("check_item", item_id="I-140", **NEXT_WEEK),
            JONAS_ASK,
            JONAS_CANCEL,
            JONAS_RESERVE,
            say("Moved. See you on March 14!"),
        ],
    ],
)

TASKS = [EXTEND, CAMPING, CANCEL, LADDER, FEE, MOVE]
