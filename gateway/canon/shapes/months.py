"""Names of months in many languages."""

import unicodedata

# One language per row, January to December; variants of one month are separated by slashes.
_NAMES = """
january/jan february/feb march/mar april/apr may june/jun july/jul august/aug september/sep/sept october/oct november/nov december/dec
januar/jänner februar/feber märz/mär april mai juni juli august september oktober/okt november dezember/dez
janvier/janv février/fevrier/févr/fevr/fév mars avril/avr mai juin juillet/juil août/aout septembre octobre novembre décembre/decembre/déc
enero/ene febrero marzo abril/abr mayo junio julio agosto/ago septiembre/setiembre octubre noviembre diciembre/dic
gennaio/gen febbraio marzo aprile maggio/mag giugno/giu luglio/lug agosto settembre/set/sett ottobre/ott novembre dicembre
janeiro fevereiro/fev março abril maio junho julho agosto setembro outubro/out novembro dezembro
januari februari maart/mrt april mei juni juli augustus september oktober november december
stycznia/styczeń lutego/luty marca/marzec kwietnia/kwiecień maja/maj czerwca/czerwiec lipca/lipiec sierpnia/sierpień września/wrzesień października/październik listopada/listopad grudnia/grudzień
января/январь/янв февраля/февраль/фев марта/март/мар апреля/апрель/апр мая/май июня/июнь/июн июля/июль/июл августа/август/авг сентября/сентябрь/сен/сент октября/октябрь/окт ноября/ноябрь/ноя/нояб декабря/декабрь/дек
січня/січень лютого/лютий березня/березень квітня/квітень травня/травень червня/червень липня/липень серпня/серпень вересня/вересень жовтня/жовтень листопада/листопад грудня/грудень
ocak şubat mart nisan mayıs haziran temmuz ağustos eylül ekim kasım aralık
januar februar marts/mars april mai/maj juni juli augusti/august september oktober november desember/december
ledna/leden února/únor března/březen dubna/duben května/květen června/červen července/červenec srpna/srpen září října/říjen listopadu prosince/prosinec
tammikuuta/tammikuu helmikuuta/helmikuu maaliskuuta/maaliskuu huhtikuuta/huhtikuu toukokuuta/toukokuu kesäkuuta/kesäkuu heinäkuuta/heinäkuu elokuuta/elokuu syyskuuta/syyskuu lokakuuta/lokakuu marraskuuta/marraskuu joulukuuta/joulukuu
január február március április május június július augusztus szeptember október november december
ianuarie februarie martie aprilie mai iunie iulie august septembrie octombrie noiembrie decembrie
ιανουαρίου φεβρουαρίου μαρτίου απριλίου μαΐου ιουνίου ιουλίου αυγούστου σεπτεμβρίου οκτωβρίου νοεμβρίου δεκεμβρίου
januari februari maret april mei juni juli agustus september oktober november desember
يناير فبراير مارس أبريل/ابريل مايو يونيو يوليو أغسطس سبتمبر أكتوبر/اكتوبر نوفمبر ديسمبر
ינואר/בינואר פברואר/בפברואר מרץ/במרץ אפריל/באפריל מאי/במאי יוני/ביוני יולי/ביולי אוגוסט/באוגוסט ספטמבר/בספטמבר אוקטובר/באוקטובר נובמבר/בנובמבר דצמבר/בדצמבר
जनवरी फ़रवरी/फरवरी मार्च अप्रैल मई जून जुलाई अगस्त सितंबर/सितम्बर अक्टूबर/अक्तूबर नवंबर/नवम्बर दिसंबर/दिसम्बर
มกราคม กุมภาพันธ์ มีนาคม เมษายน พฤษภาคม มิถุนายน กรกฎาคม สิงหาคม กันยายน ตุลาคม พฤศจิกายน ธันวาคม
"""  # noqa: E501 - one language a row

MONTH_NUMBERS: dict[str, int] = {
    unicodedata.normalize("NFC", name).casefold(): number
    for row in _NAMES.strip().splitlines()
    for number, names in enumerate(row.split(), 1)
    for name in names.split("/")
}
"""Month, 1 to 12, by its name, NFC-normalized and case-folded. Unambiguous within these languages. Croatian is left
out, because its ``listopad`` is October."""
